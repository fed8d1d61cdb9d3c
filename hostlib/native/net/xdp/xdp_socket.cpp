#include "net/xdp/xdp_socket.h"

#include <arpa/inet.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include "net/clock.h"
#include "net/ecn.h"

namespace netfold {
namespace {

constexpr std::uint32_t RECEIVED_ENTRIES = 512, SENT_ENTRIES = 256;
constexpr std::size_t MOST_TAKEN = 64;  // frames, by one receive()
constexpr int SEND_BYTES = 4 << 20;
// In front of a frame: its payload is then at the beginning of a cache line.
constexpr std::size_t LEAD_BYTES = 64 - frame::HEADERS_BYTES;
constexpr std::int64_t KNOWN_NS = 1000 * MILLISECOND_NS, UNKNOWN_NS = 2 * MILLISECOND_NS;
constexpr std::int64_t SHUT_NS = 1000 * MILLISECOND_NS;
// While packets come over the rings, the UDP socket waits no longer than this.
constexpr std::int64_t LOOK_NS = MILLISECOND_NS;
// A driver has sent some frames after this time. One that has not after PATIENCE_NS has a link that is down.
constexpr timespec MOMENT{0, 20000};
constexpr std::int64_t PATIENCE_NS = 100 * MILLISECOND_NS;

// Throws std::system_error that names what this process lacks.
void require_rights() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3]{};
    if (::syscall(SYS_capget, &header, sets) != 0) throw std::system_error(errno, std::generic_category(), "capget");
    const auto has = [&sets](unsigned right) { return (sets[right / 32].effective >> right % 32 & 1) != 0; };
    std::string missing;
    const auto require = [&](bool there, const char *name) {
        if (!there) missing += (missing.empty() ? "" : ", ") + std::string(name);
    };
    require(has(CAP_NET_ADMIN), "CAP_NET_ADMIN");
    require(has(CAP_NET_RAW), "CAP_NET_RAW");
    require(has(CAP_BPF) || has(CAP_SYS_ADMIN), "CAP_BPF");
    if (!missing.empty())
        throw std::system_error(
            EPERM, std::generic_category(),
            "NETFOLD_PATH=xdp: this process lacks " + missing + ", which root has; NETFOLD_PATH=udp needs none");
}

std::uint64_t chunk_of(std::uint64_t address) { return address & ~std::uint64_t{XdpQueue::CHUNK_BYTES - 1}; }

}  // namespace

XdpSocket::XdpSocket(const std::string &address, std::uint16_t port) : udp_(address, port) {
    require_rights();
    here_ = resolve({udp_.address(), udp_.port()});
}

XdpSocket::~XdpSocket() { close(); }

void XdpSocket::aim(const End &target, std::size_t packet_bytes, const std::vector<End> &senders) {
    drop();
    udp_.aim(target, packet_bytes, senders);
    target_ = resolve(target);
    senders_.clear();
    for (const End &sender : senders) senders_.push_back(resolve(sender));
    if (senders_.empty()) senders_.push_back(target_);
    const std::optional<Route> route = netlink_.route(target_.sin_addr, here_.sin_addr);
    if (!route) throw std::system_error(ENETUNREACH, std::generic_category(), "no way to " + target.address);
    if (here_.sin_addr.s_addr == INADDR_ANY) here_.sin_addr = route->source;
    if (!queue_ || queue_->index() != route->interface) {
        close();
        open(route->interface);
    }
    packet_bytes_ = packet_bytes;
    frame_chunks_ =
        (LEAD_BYTES + frame::HEADERS_BYTES + packet_bytes + XdpQueue::CHUNK_BYTES - 1) / XdpQueue::CHUNK_BYTES;
    frames_ = static_cast<int>(XdpQueue::CHUNKS_EACH / frame_chunks_);
    building_.assign(static_cast<std::size_t>(frames_), false);
    spilt_.resize(BATCH * packet_bytes);
    gathered_.resize(MOST_TAKEN * (frame::HEADERS_BYTES + packet_bytes));
    hops_.clear();
    hear();
}

// ---- rings ---------------------------------------------------------------------------------------------------------

void XdpSocket::open(int interface) {
    std::shared_ptr<XdpQueue> queue = XdpQueue::of(interface);
    Descriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
    const auto require = [&queue](bool done) {
        if (!done)
            throw std::system_error(errno, std::generic_category(),
                                    "NETFOLD_PATH=xdp: one more AF_XDP socket on " + queue->interface().name);
    };
    const int received = RECEIVED_ENTRIES, sent = SENT_ENTRIES;
    require(bool{socket} && setsockopt(socket.get(), SOL_XDP, XDP_RX_RING, &received, sizeof received) == 0
            && setsockopt(socket.get(), SOL_XDP, XDP_TX_RING, &sent, sizeof sent) == 0);
    poll_card(socket.get(), udp_.busy_ns());
    // What the driver has of this socket may be as much as it likes: frames are counted here.
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &SEND_BYTES, sizeof SEND_BYTES);
    sockaddr_xdp to{};
    to.sxdp_family = AF_XDP;
    to.sxdp_flags = XDP_SHARED_UMEM;
    to.sxdp_ifindex = static_cast<std::uint32_t>(interface);
    to.sxdp_queue_id = queue->queue();
    to.sxdp_shared_umem_fd = static_cast<std::uint32_t>(queue->descriptor());
    xdp_mmap_offsets offsets{};
    xdp_options options{};
    socklen_t size = sizeof offsets, options_size = sizeof options;
    require(::bind(socket.get(), reinterpret_cast<const sockaddr *>(&to), sizeof to) == 0
            && getsockopt(socket.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) == 0
            && getsockopt(socket.get(), SOL_XDP, XDP_OPTIONS, &options, &options_size) == 0);
    auto sent_ring = std::make_unique<Ring<xdp_desc>>(), received_ring = std::make_unique<Ring<xdp_desc>>();
    sent_ring->map(socket.get(), XDP_PGOFF_TX_RING, offsets.tx, SENT_ENTRIES);
    received_ring->map(socket.get(), XDP_PGOFF_RX_RING, offsets.rx, RECEIVED_ENTRIES);
    const unsigned number = queue->enter();
    queue_ = std::move(queue);
    number_ = number;
    socket_ = std::move(socket);
    sent_ = std::move(sent_ring);
    received_frames_ = std::move(received_ring);
    copies_ = (options.flags & XDP_OPTIONS_ZEROCOPY) == 0;
    queue_->program().put_socket(number_, socket_.get());
}

void XdpSocket::close() {
    if (!queue_) return;
    queue_->program().leave(here_);
    queue_->program().remove_socket(number_);
    // The kernel puts nothing more into the rings once the socket is closed; they are mapped until then and later.
    socket_.close();
    for (std::uint32_t i = 0; i < received_frames_->available(); i++)
        read_.push_back(chunk_of(received_frames_->peek(i).addr));
    queue_->give_back(read_);
    for (std::uint32_t i = 0; i < sent_->waiting(); i++) queue_->take_back(sent_->unread(i).addr);
    queue_->leave(number_);
    sent_.reset();
    received_frames_.reset();
    queue_.reset();
}

// Packets for this socket come over its ring from now on.
void XdpSocket::hear() {
    const std::size_t longest =
        std::min(frame::IP_BYTES + frame::UDP_BYTES + packet_bytes_, queue_->longest() - frame::ETHERNET_BYTES);
    queue_->program().direct(here_, number_, longest);
}

// ---- sending -------------------------------------------------------------------------------------------------------

void XdpSocket::keep_below(std::size_t bytes) { udp_.keep_below(bytes); }

void XdpSocket::set_ecn(int bits) {
    udp_.set_ecn(bits);
    ecn_bits_ = bits;
    for (Hop &hop : hops_)
        if (hop.known) frame::write_ecn(hop.headers, bits);
}

std::uint64_t XdpSocket::start_of(int frame) const {
    return XdpQueue::chunks_of(number_) + static_cast<std::uint64_t>(frame) * frame_chunks_ * XdpQueue::CHUNK_BYTES;
}

bool XdpSocket::is_free(int frame) const {
    if (building_[static_cast<std::size_t>(frame)]) return false;
    for (std::size_t chunk = 0; chunk < frame_chunks_; chunk++)
        if (queue_->is_sent(start_of(frame) + chunk * XdpQueue::CHUNK_BYTES)) return false;
    return true;
}

// The first one that is free, so that the same few are used again, which are in the caches; -1 if there is none.
int XdpSocket::free_frame() {
    for (; search_from_ < frames_; search_from_++)
        if (is_free(search_from_)) return search_from_++;
    return -1;
}

std::uint8_t *XdpSocket::next() {
    if (full()) flush();
    if (batch_.empty()) {
        queue_->reap();
        search_from_ = 0;
    }
    int frame = free_frame();
    if (frame < 0 && await_room()) frame = free_frame();
    std::uint8_t *payload = nullptr;
    if (frame < 0) {
        payload = spilt_.data() + batch_.size() * packet_bytes_;
    } else {
        payload = queue_->memory() + start_of(frame) + LEAD_BYTES + frame::HEADERS_BYTES;
        building_[static_cast<std::size_t>(frame)] = true;
    }
    batch_.push_back({payload, frame});
    return payload;
}

int XdpSocket::most_on_way() const {
    const std::size_t fit = udp_.below() / (frame::HEADERS_BYTES + packet_bytes_);
    return static_cast<int>(std::clamp<std::size_t>(fit, 1, static_cast<std::size_t>(frames_ - BATCH)));
}

// Until fewer frames are on their way than may be: the rest waits in the batch. False if that takes too long.
bool XdpSocket::await_room() {
    for (const std::int64_t give_up = now_ns() + PATIENCE_NS;; ::nanosleep(&MOMENT, nullptr)) {
        kick();
        queue_->reap();
        on_way_ = 0;
        for (int frame = 0; frame < frames_; frame++) on_way_ += queue_->is_sent(start_of(frame)) ? 1 : 0;
        search_from_ = 0;
        if (on_way_ < most_on_way()) return true;
        if (now_ns() > give_up) return false;
    }
}

// Puts a frame into the ring: its chunks are neighbours, and each is an entry.
bool XdpSocket::post(int frame, const Hop &hop) {
    if (sent_->room() < frame_chunks_) return false;
    const std::uint64_t start = start_of(frame) + LEAD_BYTES;
    std::memcpy(queue_->memory() + start, hop.headers, sizeof hop.headers);
    const std::uint64_t end = start + frame::HEADERS_BYTES + packet_bytes_;
    for (std::uint64_t at = start; at < end;) {
        const std::uint64_t chunk = chunk_of(at);
        const std::uint64_t until = std::min(end, chunk + XdpQueue::CHUNK_BYTES);
        queue_->send(chunk);
        sent_->put({at, static_cast<std::uint32_t>(until - at), until < end ? XDP_PKT_CONTD : 0U});
        at = until;
    }
    on_way_++;
    return true;
}

// Until the kernel has taken all that is in the ring, or takes nothing. A call takes a few dozen entries.
void XdpSocket::kick() {
    sent_->publish();
    if (!copies_ && !sent_->sleeps()) return;
    for (std::uint32_t left = sent_->waiting(), idle = 0; left > 0 && idle < 2;) {
        const bool went = ::sendto(socket_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0;
        if (!went && errno != EAGAIN && errno != EBUSY && errno != EINTR && errno != ENOBUFS) {
            shut_until_ns_ = now_ns() + SHUT_NS;  // The interface is down, or gone.
            return;
        }
        if (!copies_) return;
        const std::uint32_t now = sent_->waiting();
        idle = now == left ? idle + 1 : 0;
        left = now;
    }
}

void XdpSocket::send_by_udp(const Built &built, const sockaddr_in &to) {
    udp_.send_to(to, built.payload, packet_bytes_, false);
}

unsigned XdpSocket::flush() {
    if (!batch_.empty()) {
        const std::int64_t now = now_ns();
        Hop &hop = hop_to(target_, now);
        bool open = hop.known && now >= shut_until_ns_;
        for (const Built &each : batch_) {
            if (open && on_way_ >= most_on_way()) open = await_room();
            const bool short_way = open && each.frame >= 0 && !std::exchange(hop.ask, false);
            if (!short_way || !post(each.frame, hop)) send_by_udp(each, target_);
        }
        kick();
        drop();
    }
    return udp_.flush();
}

void XdpSocket::drop() {
    for (const Built &each : batch_)
        if (each.frame >= 0) building_[static_cast<std::size_t>(each.frame)] = false;
    batch_.clear();
}

// The batch is kept, so each address gets frames of its own.
void XdpSocket::copy_to(const sockaddr_in &end) {
    if (batch_.empty()) return;
    const std::int64_t now = now_ns();
    Hop &hop = hop_to(end, now);
    const bool open = hop.known && now >= shut_until_ns_;
    queue_->reap();
    search_from_ = 0;
    for (const Built &each : batch_) {
        const bool short_way = open && !std::exchange(hop.ask, false) && (on_way_ < most_on_way() || await_room());
        const int frame = short_way ? free_frame() : -1;
        if (frame >= 0)
            std::memcpy(queue_->memory() + start_of(frame) + LEAD_BYTES + frame::HEADERS_BYTES, each.payload,
                        packet_bytes_);
        if (frame < 0 || !post(frame, hop)) send_by_udp(each, end);
    }
    kick();
}

XdpSocket::Hop &XdpSocket::hop_to(const sockaddr_in &to, std::int64_t now) {
    auto found = std::find_if(hops_.begin(), hops_.end(), [&to](const Hop &hop) { return same(hop.to, to); });
    if (found == hops_.end()) {
        hops_.push_back({});
        found = hops_.end() - 1;
        found->to = to;
    }
    if (now >= found->due_ns) look_up(*found, now);
    return *found;
}

// A neighbour of whom the kernel has not heard for a while gets a packet by UDP: the kernel asks whether it is there.
void XdpSocket::look_up(Hop &hop, std::int64_t now) {
    const Interface &interface = queue_->interface();
    const std::optional<Route> route = netlink_.route(hop.to.sin_addr, here_.sin_addr);
    const bool fits = frame::IP_BYTES + frame::UDP_BYTES + packet_bytes_ <= interface.mtu
                      && frame::HEADERS_BYTES + packet_bytes_ <= queue_->longest();
    std::optional<Neighbour> neighbour;
    if (route && route->interface == queue_->index() && fits)
        neighbour = interface.is_loopback ? Neighbour{{}, true} : netlink_.neighbour(route->interface, route->next);
    hop.known = neighbour.has_value();
    hop.due_ns = now + (hop.known ? KNOWN_NS : UNKNOWN_NS);
    if (!neighbour) return;
    hop.ask = !neighbour->confirmed;
    frame::write_headers(hop.headers, neighbour->mac, interface.mac, hop.to, here_, packet_bytes_, ecn_bits_);
}

// ---- receiving -----------------------------------------------------------------------------------------------------

int XdpSocket::receive(std::int64_t timeout_ns) {
    received_.clear();
    gathered_frames_ = 0;
    if (!read_.empty()) queue_->give_back(read_);
    const bool arrived = received_frames_ && received_frames_->available() > 0;
    if (!arrived || now_ns() >= look_at_udp_ns_) wait(arrived || udp_readable_ ? 0 : timeout_ns);
    if (received_frames_) take();
    drained_ = !received_frames_ || received_frames_->available() == 0;
    if (std::exchange(udp_readable_, false)) {
        const int count = udp_.receive(0);
        for (int i = 0; i < count; i++) received_.push_back({udp_.packet(i), udp_.bytes(i), udp_.marked(i)});
        drained_ = drained_ && udp_.drained();
    }
    return static_cast<int>(received_.size());
}

void XdpSocket::wait(std::int64_t timeout_ns) {
    pollfd ready[3] = {{udp_.descriptor(), POLLIN, 0}, {udp_.interrupted(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    const auto look = [&ready](std::int64_t for_ns) {
        const timespec most{for_ns / 1000000000, for_ns % 1000000000};
        return ::ppoll(ready, 3, &most, nullptr) > 0;
    };
    bool found = false;
    const std::int64_t begun = now_ns(), until = begun + std::min(timeout_ns, udp_.busy_ns());
    std::int64_t now = begun;
    for (; !found && now < until; now = now_ns()) {
        if (socket_) ::recvfrom(socket_.get(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);  // See poll_card().
        found = look(0);
    }
    if (!found) found = look(std::max<std::int64_t>(begun + timeout_ns - now, 0));
    if (found && (ready[0].revents != 0 || ready[1].revents != 0)) udp_readable_ = true;
    look_at_udp_ns_ = now_ns() + LOOK_NS;
}

void XdpSocket::take() {
    const std::uint32_t available = received_frames_->available();
    std::uint32_t taken = 0;
    std::size_t frames = 0;
    for (std::uint32_t at = 0; at < available && frames < MOST_TAKEN; at++) {
        if ((received_frames_->peek(at).options & XDP_PKT_CONTD) != 0) continue;
        take_frame(taken, at + 1 - taken);
        taken = at + 1;
        frames++;
    }
    received_frames_->release(taken);
}

void XdpSocket::take_frame(std::uint32_t first, std::uint32_t count) {
    const xdp_desc &begin = received_frames_->peek(first);
    const std::uint8_t *frame = queue_->memory() + begin.addr;
    std::size_t bytes = begin.len;
    if (count > 1) {
        const std::size_t room = gathered_.size() / MOST_TAKEN;
        std::uint8_t *gathered = gathered_.data() + gathered_frames_++ * room;
        bytes = 0;
        for (std::uint32_t i = 0; i < count; i++) {
            const xdp_desc &part = received_frames_->peek(first + i);
            const std::size_t fits = std::min<std::size_t>(part.len, room - bytes);
            std::memcpy(gathered + bytes, queue_->memory() + part.addr, fits);
            bytes += fits;
        }
        frame = gathered;
    }
    for (std::uint32_t i = 0; i < count; i++) read_.push_back(chunk_of(received_frames_->peek(first + i).addr));
    const std::optional<std::size_t> payload = frame::payload_bytes(frame, bytes);
    if (payload && is_wanted(frame::source(frame)))
        received_.push_back({frame + frame::AT_PAYLOAD, *payload, ecn::is_marked(frame[frame::AT_SERVICE])});
}

bool XdpSocket::is_wanted(const sockaddr_in &source) const {
    return std::any_of(senders_.begin(), senders_.end(),
                       [&source](const sockaddr_in &sender) { return same(sender, source); });
}

// ---- echo ----------------------------------------------------------------------------------------------------------

// It comes back by UDP, as does all else meanwhile.
std::optional<std::uint16_t> XdpSocket::echo(const End &to, const std::vector<std::uint8_t> &datagram, std::size_t at,
                                             std::int64_t timeout_ns) {
    if (queue_) queue_->program().leave(here_);
    const std::optional<std::uint16_t> found = udp_.echo(to, datagram, at, timeout_ns);
    if (queue_) hear();
    udp_readable_ = true;
    return found;
}

}  // namespace netfold
