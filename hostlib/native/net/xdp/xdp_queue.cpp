#include "net/xdp/xdp_queue.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <system_error>
#include <thread>
#include <tuple>

#include "net/environment.h"
#include "net/xdp/frame.h"

namespace netfold {
namespace {

constexpr std::uint32_t FILL_ENTRIES = 2048, COMPLETED_ENTRIES = 4096;
// That the kernel has to receive into. More would be used in turn, and none of them be in the caches.
constexpr std::uint32_t FILLED = 1024;
// The kernel keeps so much of a chunk for programs.
constexpr std::size_t HEADROOM_BYTES = 256;
constexpr std::size_t VLAN_BYTES = 4;
constexpr int LONGEST_DATAGRAM = 65535;
// A queue is free again a moment after its last socket was closed.
constexpr int BIND_TRIES = 100;
constexpr std::chrono::milliseconds BIND_PAUSE{5};
#ifndef SO_NETNS_COOKIE  // Linux 5.14
constexpr int SO_NETNS_COOKIE = 71;
#endif

constexpr const char *OTHERWISE = "; NETFOLD_PATH=udp needs no such thing";

[[noreturn]] void refuse(int why, const std::string &what) {
    throw std::system_error(why, std::generic_category(), "NETFOLD_PATH=xdp: " + what + OTHERWISE);
}

unsigned chosen_queue() {
    return static_cast<unsigned>(number_named("NETFOLD_XDP_QUEUE", 0, 9999, "a queue's number"));
}

// What has no bandwidth of its own: packets that pass it by take nothing from others.
const std::vector<std::string> &unshaped() {
    static const std::vector<std::string> kinds{"noqueue", "mq",       "pfifo_fast", "pfifo", "bfifo",
                                                "fq",      "fq_codel", "ingress",    "clsact"};
    return kinds;
}

void require_fit(const Interface &interface, const std::vector<std::string> &disciplines) {
    if (!interface.is_ethernet && !interface.is_loopback)
        refuse(EOPNOTSUPP, interface.name + " has no Ethernet frames");
    for (const std::string &kind : disciplines)
        if (std::find(unshaped().begin(), unshaped().end(), kind) == unshaped().end())
            refuse(EOPNOTSUPP, interface.name + " has a queue of the kind " + kind
                                   + ", which this path would pass by; it takes noqueue, mq, pfifo_fast, pfifo, bfifo, "
                                     "fq and fq_codel");
}

// Interfaces of several namespaces have the same numbers.
std::uint64_t network_namespace(int fd) {
    std::uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size);
    return cookie;
}

template <class Value>
bool set(int fd, int option, const Value &value) {
    return setsockopt(fd, SOL_XDP, option, &value, sizeof value) == 0;
}

}  // namespace

std::shared_ptr<XdpQueue> XdpQueue::of(int interface) {
    static std::mutex mutex;
    // By process, too: a forked one has the objects of its parent, and none of their memory.
    static std::map<std::tuple<pid_t, std::uint64_t, int, unsigned>, std::weak_ptr<XdpQueue>> known;
    const unsigned queue = chosen_queue();
    const Descriptor here(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const std::lock_guard lock(mutex);
    std::weak_ptr<XdpQueue> &its = known[{::getpid(), network_namespace(here.get()), interface, queue}];
    std::shared_ptr<XdpQueue> found = its.lock();
    if (!found) its = found = std::make_shared<XdpQueue>(interface, queue);
    return found;
}

XdpQueue::XdpQueue(int interface, unsigned queue) : index_(interface), queue_(queue) {
    Netlink netlink;
    interface_ = netlink.interface(interface);
    require_fit(interface_, netlink.disciplines(interface));
    void *memory = ::mmap(nullptr, CHUNKS * CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "memory for packets");
    memory_ = static_cast<std::uint8_t *>(memory);
    // Else a fork would give this process copies of pages that the kernel goes on to use.
    ::madvise(memory_, CHUNKS * CHUNK_BYTES, MADV_DONTFORK);
    try {
        open();
        program_ = std::make_unique<XdpProgram>(interface, interface_.name, queue, SOCKETS);
    } catch (...) {
        socket_.close();
        ::munmap(memory_, CHUNKS * CHUNK_BYTES);
        throw;
    }
}

XdpQueue::~XdpQueue() {
    program_.reset();
    socket_.close();
    ::munmap(memory_, CHUNKS * CHUNK_BYTES);
}

// A socket that receives nothing. It holds the queue while sockets come and go.
void XdpQueue::open() {
    socket_ = Descriptor(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
    if (!socket_) refuse(errno, "the kernel has no AF_XDP socket for this process");
    xdp_umem_reg memory{};
    memory.addr = reinterpret_cast<std::uint64_t>(memory_);
    memory.len = CHUNKS * CHUNK_BYTES;
    memory.chunk_size = CHUNK_BYTES;
    if (!set(socket_.get(), XDP_UMEM_REG, memory))
        refuse(errno, std::to_string(memory.len >> 20)
                          + " MiB of memory for packets cannot be locked (ulimit -l, or CAP_IPC_LOCK)");
    const int fill = FILL_ENTRIES, completed = COMPLETED_ENTRIES, least = 1;
    xdp_mmap_offsets offsets{};
    socklen_t size = sizeof offsets;
    if (!set(socket_.get(), XDP_UMEM_FILL_RING, fill) || !set(socket_.get(), XDP_UMEM_COMPLETION_RING, completed)
        || !set(socket_.get(), XDP_RX_RING, least)
        || getsockopt(socket_.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) != 0)
        refuse(errno, "the kernel gives no AF_XDP rings");
    fill_.map(socket_.get(), XDP_UMEM_PGOFF_FILL_RING, offsets.fr, FILL_ENTRIES);
    completed_.map(socket_.get(), XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, COMPLETED_ENTRIES);
    for (std::size_t chunk = RECEIVED_CHUNKS; chunk > 0; chunk--) free_.push_back((chunk - 1) * CHUNK_BYTES);
    refill();
    bind();
}

// The kernel takes a driver's zero copy where it has one. Frames in several chunks are asked for only where frames may
// be longer than one: not every driver that has the first has the second.
void XdpQueue::bind() {
    constexpr std::size_t IN_ONE = CHUNK_BYTES - HEADROOM_BYTES;
    const std::size_t tagged = interface_.mtu + frame::ETHERNET_BYTES + VLAN_BYTES;
    longest_ = std::min<std::size_t>(tagged, LONGEST_DATAGRAM + frame::ETHERNET_BYTES);
    sockaddr_xdp to{};
    to.sxdp_family = AF_XDP;
    to.sxdp_ifindex = static_cast<std::uint32_t>(index_);
    to.sxdp_queue_id = queue_;
    to.sxdp_flags = XDP_USE_NEED_WAKEUP;
    if (tagged > IN_ONE) to.sxdp_flags |= XDP_USE_SG;
    for (int tries = 0; ::bind(socket_.get(), reinterpret_cast<const sockaddr *>(&to), sizeof to) != 0; tries++) {
        const int why = errno;
        const std::string queue = "queue " + std::to_string(queue_) + " of " + interface_.name;
        if (why == EINVAL && (to.sxdp_flags & XDP_USE_SG) != 0) {  // A kernel that has no such frames.
            to.sxdp_flags &= static_cast<std::uint16_t>(~XDP_USE_SG);
            longest_ = IN_ONE;
        } else if (why == EINVAL) {
            refuse(why, "there is no " + queue + " (NETFOLD_XDP_QUEUE)");
        } else if (why != EBUSY) {
            refuse(why, queue + " has no AF_XDP");
        } else if (tries == BIND_TRIES) {
            refuse(why, "another process has " + queue + "'s AF_XDP, or another user of it (NETFOLD_XDP_QUEUE)");
        } else {
            std::this_thread::sleep_for(BIND_PAUSE);
        }
    }
}

unsigned XdpQueue::enter() {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(entered_.begin(), entered_.end(), false);
    if (found == entered_.end())
        refuse(EMFILE, "this process has " + std::to_string(SOCKETS) + " sockets on " + interface_.name
                           + " already, and more have no room");
    *found = true;
    return static_cast<unsigned>(found - entered_.begin());
}

void XdpQueue::leave(unsigned number) {
    const std::lock_guard lock(mutex_);
    entered_[number] = false;
}

void XdpQueue::reap() {
    const std::lock_guard lock(mutex_);
    const std::uint32_t count = completed_.available();
    for (std::uint32_t i = 0; i < count; i++) take_back(completed_.peek(i));
    completed_.release(count);
}

void XdpQueue::give_back(std::vector<std::uint64_t> &chunks) {
    const std::lock_guard lock(mutex_);
    free_.insert(free_.end(), chunks.begin(), chunks.end());
    chunks.clear();
    refill();
}

void XdpQueue::refill() {
    for (std::uint32_t has = fill_.waiting(); has < FILLED && !free_.empty(); has++) {
        fill_.put(free_.back());
        free_.pop_back();
    }
    fill_.publish();
}

}  // namespace netfold
