#include "aggregation/lane.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "aggregation/lane_cores.h"
#include "block_float/kernels.h"
#include "net/clock.h"
#include "net/ecn.h"
#include "retransmission/pacing.h"
#include "wire/acknowledgement.h"

namespace netfold {
namespace {

constexpr std::int64_t ANSWERED = -1;
// Bytes that may wait in this host for its link, if few are sent, and packets: so many owners' lanes share the bytes
// that a lane has, whose thread would wake for every packet if it had less.
constexpr std::size_t LEAST_BELOW = 32 << 10, LEAST_PACKETS_BELOW = 4;
// Packets outstanding while no round trip is known. More might queue for longer than the first timeout; then all would
// be sent again, and none could be measured.
constexpr int UNMEASURED = 8;
// Between results, as far as a rank waits for them. Four of these are how long it waits between its questions at most.
constexpr std::int64_t LONGEST_GAP_NS = 25 * MILLISECOND_NS;
// Bytes of a tensor that are read at a time to find the scales of their blocks: most of them are in a core's own cache
// when they are sent.
constexpr std::size_t SCANNED_BYTES = 128 << 10;
// Of Ethernet, IPv4, UDP and the slot protocol.
constexpr std::size_t FRAME_HEADERS = 14 + 20 + 8 + layout::HEADER_BYTES;

}  // namespace

// The finaliser of MurmurHash3, which is a bijection, applied to all that is to agree.
std::uint64_t kind_of(DType dtype, std::size_t count, bool average) {
    std::uint64_t mixed = std::uint64_t{count} * 16 + static_cast<std::uint64_t>(dtype) * 2 + average + 1;
    mixed = (mixed ^ mixed >> 33) * 0xff51afd7ed558ccdULL;
    mixed = (mixed ^ mixed >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return mixed ^ mixed >> 33;
}

std::uint32_t kind_word(std::uint64_t kind, std::size_t word, int world_size) {
    return static_cast<std::uint32_t>(kind >> 32 * word) % (LARGEST_SUM / static_cast<std::uint32_t>(world_size));
}

bool is_of_kind(std::uint64_t kind, const std::uint8_t *vector, std::size_t elements, int world_size, int ranks) {
    for (std::size_t word = 0; word < std::min(elements, KIND_WORDS); word++)
        if (get32(vector + 4 * word) != kind_word(kind, word, world_size) * static_cast<std::uint32_t>(ranks))
            return false;
    return true;
}

void announce(std::vector<std::shared_ptr<Operation>> &finished) {
    for (const auto &operation : finished)
        if (operation->parts.fetch_sub(1) == 1 || operation->differs) operation->finished();
    finished.clear();
}

Lane::Lane(const std::string &address, std::uint16_t port, std::optional<int> core)
    : socket_(open_socket(address, port)), thread_([this] { run(); }) {
    if (core) bind_to(thread_, *core);
}

Lane::~Lane() {
    {
        const std::lock_guard lock(mutex_);
        quit_ = true;
    }
    wake_.notify_all();
    socket_->interrupt();
    thread_.join();
}

// ---- called by other threads --------------------------------------------------------------------------------------

void Lane::configure(const End &fabric, const Header &header, const Pool &pool, int world_size, int window,
                     std::shared_ptr<const CheckWords> check) {
    halt();
    const std::lock_guard lock(mutex_);
    header_ = header;
    pool_ = pool;
    world_size_ = world_size;
    check_ = std::move(check);
    elements_ = header.element_count;
    const std::size_t packet_bytes = layout::HEADER_BYTES + 4 * elements_;
    const auto others = static_cast<std::size_t>(std::max(world_size - 1, 1));
    least_below_ = pool.acknowledged ? std::max(LEAST_BELOW / others, LEAST_PACKETS_BELOW * packet_bytes) : LEAST_BELOW;
    socket_->keep_below(pool.acknowledged ? least_below_ : Socket::MOST_BELOW);
    std::vector<End> senders;
    if (pool.server.port != 0) senders.push_back(pool.server);
    socket_->aim(fabric, packet_bytes, senders);
    // A mark on a contribution comes back on its result, or the owner of a shard tells of it.
    socket_->set_ecn(ecn::CAPABLE);
    slots_.assign(static_cast<std::size_t>(pool.slots), Slot{});
    kept_.assign(pool.acknowledged ? 0 : slots_.size() * 4 * elements_, 0);
    parts_.clear();
    incoming_.clear();
    next_position_ = shown_position_ = 0;
    open_ = 0;
    free_.resize(slots_.size());
    std::iota(free_.begin(), free_.end(), 0);
    free_changed_ = false;
    round_trip_ = {};
    // An owner tells of so many sums at a time. Of fewer it tells only after a while, which would be the round trip.
    const std::size_t told = pool.acknowledged ? sums_told_together(slots_.size(), elements_) : 0;
    const int least = std::max(static_cast<int>(told), CongestionWindow::LEAST);
    congestion_ = CongestionWindow(least, pool.slots, window, UNMEASURED, FRAME_HEADERS + 4 * elements_);
    timeouts_ = Timeouts(LONGEST_LANE_TIMEOUT_NS);
    overtaking_ns_ = gap_ns_ = shared_ns_ = 0;
    verdict_due_ns_ = NEVER_NS;
    halted_ = busy_ = false;
}

void Lane::submit(std::unique_ptr<Part> part) {
    {
        const std::lock_guard lock(mutex_);
        part->first = next_position_;
        next_position_ = part->end();
        if (!busy_) {
            busy_ = true;
            shown_heard_ns_ = heard_ns_ = came_ns_ = now_ns();
        }
        incoming_.push_back(std::move(part));
    }
    wake_.notify_all();
    socket_->interrupt();
}

std::optional<std::uint16_t> Lane::echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                        std::int64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    if (busy_) throw std::logic_error("something is under way: halt() comes first");
    parked_changed_.wait(lock, [this] { return parked_; });
    return socket_->echo(fabric, question, layout::OFFSET_RANK, timeout_ns);
}

void Lane::halt() {
    std::unique_lock lock(mutex_);
    halted_ = true;
    wake_.notify_all();
    socket_->interrupt();
    parked_changed_.wait(lock, [this] { return parked_; });
    for (auto &part : incoming_) parts_.push_back(std::move(part));
    incoming_.clear();
    busy_ = false;
}

Stats Lane::stats() const {
    const std::lock_guard lock(mutex_);
    return shown_;
}

std::uint64_t Lane::position() const {
    const std::lock_guard lock(mutex_);
    return shown_position_;
}

std::int64_t Lane::silent_ns() const {
    const std::lock_guard lock(mutex_);
    return busy_ ? now_ns() - shown_heard_ns_ : 0;
}

void Lane::retained(std::size_t index, std::int64_t &position, std::uint32_t *words) const {
    const Slot &slot = slots_[index];
    position = slot.kept_position;
    words[0] = std::uint32_t{slot.kept_exponent} << 16 | slot.kept_next;
    std::memcpy(words + 1, kept_.data() + index * 4 * elements_, 4 * elements_);
}

void Lane::restore(std::size_t index, std::int64_t position, const std::uint32_t *words) {
    Slot &slot = slots_[index];
    if (!slot.open || slot.position != position) return;
    if (words[0] >> 16 != slot.exponent) throw std::logic_error("a result of another exponent cannot be restored");
    finish(index, reinterpret_cast<const std::uint8_t *>(words + 1), static_cast<std::uint16_t>(words[0]));
    announce(finished_);
}

const Part *Lane::part(const Operation *operation) const {
    for (const auto &part : parts_)
        if (part->operation.get() == operation) return part.get();
    return nullptr;
}

// ---- the thread --------------------------------------------------------------------------------------------------

void Lane::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto something = [this] { return quit_ || (!halted_ && (!incoming_.empty() || !parts_.empty())); };
        if (!something()) {
            parked_ = true;
            parked_changed_.notify_all();
            wake_.wait(lock, something);
            parked_ = false;
        }
        if (quit_) return;
        for (auto &part : incoming_) parts_.push_back(std::move(part));
        incoming_.clear();
        lock.unlock();
        cycle();
        lock.lock();
        while (!parts_.empty() && parts_.front()->done == parts_.front()->chunks) parts_.pop_front();
        busy_ = !parts_.empty() || !incoming_.empty();
        stats_.window = static_cast<std::uint64_t>(congestion_.size());
        shown_ = stats_;
        shown_heard_ns_ = heard_ns_;
        shown_position_ = parts_.empty() ? next_position_ : parts_.front()->first;
        if (finished_.empty()) continue;
        // After the state that it announces, and without the lock, which the waiter may need.
        lock.unlock();
        announce(finished_);
        lock.lock();
    }
}

void Lane::cycle() {
    const std::int64_t began = now_ns();
    send_what_may();
    stats_.refused += socket_->flush();
    if (open_ > 0 && socket_->drained()) let_packets_gather(round_trip_.estimate_ns());
    const std::int64_t before = now_ns();
    const std::int64_t wake =
        open_ > 0 ? std::min({next_due_ns_, tail_due_ns_, verdict_due_ns_}) : before + LONGEST_WAIT_NS;
    const int n = socket_->receive(std::max<std::int64_t>(wake - before, 1));
    const std::int64_t now = now_ns();
    stats_.blocked_ns += static_cast<std::uint64_t>(now - before);
    for (int i = 0; i < n; i++) handle(i, now);
    const bool judged = now >= verdict_due_ns_;
    if (judged) {
        overtaking_ns_ = std::max(overtaking_ns_, answered_ns_);
        verdict_due_ns_ = NEVER_NS;
    }
    if (judged || n > 0) send_overtaken(now);
    if (now >= next_due_ns_) send_again(now);
    if (open_ > 0 && now >= tail_due_ns_) ask_for_lowest(now);
    stats_.busy_ns += static_cast<std::uint64_t>(now_ns() - began);
}

// Every rank sends in the same order, so results arrive in that order, too. If a result is overtaken by one for a
// packet sent some time later, a rank's contribution or this rank's copy was lost. RACK detects TCP's losses in the
// same way (RFC 8985).
void Lane::send_overtaken(std::int64_t now) {
    const std::int64_t before = overtaking_ns_ - round_trip_.reordering_ns();
    for (std::size_t index = 0; index < slots_.size(); index++) {
        Slot &slot = slots_[index];
        if (!slot.open || slot.sent_ns >= before) continue;
        stats_.overtaken++;
        congestion_.lost(slot.sent_ns, now, round_trip_);
        resend(slot, index);
    }
}

// While results arrive, they show which others are late. When none does, all ranks ask for the same one: the lowest
// that all lack. Its result shows the rest. TCP's tail loss probe is alike (RFC 8985, 7).
void Lane::ask_for_lowest(std::int64_t now) {
    const auto position = [](const Slot &slot) { return slot.open ? slot.position : INT64_MAX; };
    const auto found = std::min_element(slots_.begin(), slots_.end(),
                                        [&](const Slot &a, const Slot &b) { return position(a) < position(b); });
    resend(*found, static_cast<std::size_t>(found - slots_.begin()));
    found->asked = true;
    tail_timeout_ns_ = timeouts_.next_tail_ns(round_trip_, tail_timeout_ns_);
    tail_due_ns_ = now + tail_timeout_ns_;
}

void Lane::resend(Slot &slot, std::size_t index) {
    slot.resent = true;
    slot.asked = false;
    stats_.retransmits++;
    transmit(slot, index);
}

// While results arrive, be it a second time, a timeout counts from the latest one (RFC 6298, 5.3): a packet that waits
// in a queue behind many others takes several times the shortest round trip, but is not lost.
void Lane::send_again(std::int64_t now) {
    next_due_ns_ = now + LONGEST_WAIT_NS;
    bool again = false;
    for (std::size_t index = 0; index < slots_.size(); index++) {
        Slot &slot = slots_[index];
        if (!slot.open) continue;
        slot.due_ns = std::max(slot.due_ns, came_ns_ + slot.timeout_ns);
        if (slot.due_ns <= now) {
            slot.timeout_ns = timeouts_.next_ns(round_trip_, slot.timeout_ns);
            congestion_.lost(slot.sent_ns, now, round_trip_);
            resend(slot, index);
            again = true;
        }
        next_due_ns_ = std::min(next_due_ns_, slot.due_ns);
    }
    if (!again) return;
    timeouts_.back_off(round_trip_, now);
    probe();
}

// Asks for a result that this rank has. The switch answers at once, whatever other ranks' packets became of: so the
// round trip is known also where losses leave hardly a packet that was sent only once. Each result is asked for once,
// for an answer must tell to which question. The check word is wrong on purpose: this is no contribution.
void Lane::probe() {
    // In a tree this rank's own switch would answer: the way to the one above, and what waits there, would not count.
    if (pool_.levels > 1 && pool_.server.port == 0) return;
    const auto found = std::find_if(slots_.begin(), slots_.end(),
                                    [](const Slot &slot) { return slot.kept_position >= 0 && slot.probed_ns == 0; });
    if (found == slots_.end()) return;
    std::uint8_t *packet = socket_->next();
    Header header = header_of(static_cast<std::size_t>(found - slots_.begin()), found->kept_position);
    header.exponent = found->kept_exponent;
    header.flags = layout::FLAG_AGAIN;
    header.next_exponent = check_->next_word(found->kept_next);
    header.check = check_->word(header, 0, header_.rank) ^ 1;
    std::memset(packet + layout::HEADER_BYTES, 0, 4 * elements_);
    write_header(packet, header);
    found->probed_ns = now_ns();
    stats_.retransmits++;
    count_sent();
}

// Where little may be outstanding, or what comes waits in a long queue, the next result is due later than a round trip
// that was measured before says. And acknowledgements come several at a time, and lanes take turns on a link.
std::int64_t Lane::first_tail_ns() const { return std::max(timeouts_.first_tail_ns(round_trip_), 4 * usual_gap_ns()); }

// With losses a gap is as long as it takes to ask, and that would be as long as the gaps before: so it has a limit.
std::int64_t Lane::usual_gap_ns() const { return pool_.acknowledged ? gap_ns_ : std::min(gap_ns_, LONGEST_GAP_NS); }

// Others of this host wait for the same interface, whose queue is first come, first served: other programs, and what
// this rank tells the others of its own shard. So only what it sends in a millisecond waits there, as TCP keeps it
// (TCP_SMALL_QUEUE, net/ipv4/tcp_output.c in Linux).
void Lane::share_interface(std::int64_t now) {
    const double packets_ns =
        static_cast<double>(stats_.chunks - shared_chunks_) / static_cast<double>(now - shared_ns_);
    shared_chunks_ = stats_.chunks;
    shared_ns_ = now;
    const double wanted = packets_ns * MILLISECOND_NS * static_cast<double>(layout::HEADER_BYTES + 4 * elements_);
    const std::size_t bytes = std::clamp(static_cast<std::size_t>(wanted), least_below_, Socket::MOST_BELOW);
    if (4 * bytes > 5 * socket_->below() || 2 * bytes < socket_->below()) socket_->keep_below(bytes);
}

void Lane::measure(std::int64_t sample_ns, std::int64_t now) {
    timeouts_.measured();
    if (!round_trip_.measure_shortest(sample_ns, now)) return;
    stats_.rtt_ns = round_trip_.estimate_ns();
    share_interface(now);
}

// The self-clocking window: a slot's next position is sent when its last result has arrived, whatever other slots wait
// for. Positions of a tensor that waits for its prologues are skipped: the next tensor's are sent meanwhile.
void Lane::send_what_may() {
    if (free_changed_) std::sort(free_.begin(), free_.end());
    free_changed_ = false;
    auto part = parts_.begin();
    const int window = congestion_.size();
    std::size_t kept = 0, i = 0;
    for (; i < free_.size(); i++) {
        const std::uint64_t position = free_[i];
        while (part != parts_.end() && position >= (*part)->end()) part++;
        if (part == parts_.end() || (open_ >= window && !lowest(position))) break;
        Part &its = **part;
        const std::uint64_t chunks_from = its.first + its.openings.prologues;
        const bool may = position < chunks_from ? position >= its.first : its.is_open(position - chunks_from);
        if (may)
            send(its, position);
        else
            free_[kept++] = position;
    }
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(kept), free_.begin() + static_cast<std::ptrdiff_t>(i));
}

// Of tensors that this rank lacks. Sent even if the window is full: ranks may fill theirs with different positions, and
// would otherwise wait forever.
bool Lane::lowest(std::uint64_t position) const {
    return std::none_of(slots_.begin(), slots_.end(), [position](const Slot &slot) {
        return slot.open && slot.position < static_cast<std::int64_t>(position);
    });
}

std::size_t Lane::chunk_values(const Part &part, std::size_t chunk) const {
    return std::min(elements_, part.count - chunk * elements_);
}

std::uint8_t *Lane::chunk_data(const Part &part, std::size_t chunk) const {
    return part.x + chunk * elements_ * bytes_of(part.operation->dtype);
}

void Lane::send(Part &part, std::uint64_t position) {
    const std::size_t index = position % slots_.size();
    const DType dtype = part.operation->dtype;
    const Openings &openings = part.openings;
    Slot &slot = slots_[index];
    slot.part = &part;
    slot.open = true;
    slot.resent = slot.asked = false;
    slot.position = static_cast<std::int64_t>(position);
    slot.exponent = slot.next_code = 0;
    slot.damage.forget();
    open_++;
    slot.prologue = position - part.first < openings.prologues;
    slot.chunk = slot.prologue ? openings.first(position - part.first) : position - part.first - openings.prologues;
    if (slot.prologue && dtype == DType::int32) {
        slot.next_code = part.operation->magnitude;
    } else if (slot.prologue) {
        if (!openings.by_levels) slot.next_code = own_code(part, slot.chunk);
    } else {
        slot.exponent = dtype == DType::int32 ? layout::EXPONENT_BIAS : part.codes[slot.chunk];
        const std::size_t later = slot.chunk + slots_.size();
        if (dtype != DType::int32 && later < part.chunks) slot.next_code = scanned_code(part, later);
    }
    slot.timeout_ns = timeouts_.first_ns(round_trip_);
    transmit(slot, index);
}

Header Lane::header_of(std::size_t index, std::int64_t position) const {
    Header header = header_;
    header.operation = layout::OPERATION_CONTRIBUTION;
    header.generation = generation_of(position);
    header.slot = static_cast<std::uint16_t>(pool_.first_slot + index);
    return header;
}

std::uint16_t Lane::own_code(const Part &part, std::size_t chunk) const {
    return block_code(part.operation->dtype, chunk_data(part, chunk), chunk_values(part, chunk));
}

// This rank's code of a chunk that is sent a round from now. A core reads memory at its full rate only in long runs.
std::uint16_t Lane::scanned_code(Part &part, std::size_t chunk) const {
    const std::size_t run = std::max<std::size_t>(1, SCANNED_BYTES / (elements_ * bytes_of(part.operation->dtype)));
    if (chunk >= part.scanned)
        for (const std::size_t end = std::min(chunk + run, part.chunks); part.scanned < end; part.scanned++)
            part.codes[part.scanned] = own_code(part, part.scanned);
    return part.codes[chunk];
}

// What is summed, and the levels of the blocks.
std::uint32_t Lane::pack_prologue(const Slot &slot, std::uint8_t *wire) const {
    const Part &part = *slot.part;
    std::array<std::uint32_t, MOST_ELEMENTS> words;
    std::size_t count = std::min(elements_, KIND_WORDS);
    for (std::size_t word = 0; word < count; word++) words[word] = kind_word(part.operation->kind, word, world_size_);
    if (part.openings.by_levels) {
        const std::size_t blocks = part.openings.size(slot.chunk / part.openings.each);
        std::array<std::uint16_t, MOST_ELEMENTS> codes;
        for (std::size_t block = 0; block < blocks; block++) codes[block] = own_code(part, slot.chunk + block);
        count_levels(codes.data(), blocks, world_size_, words.data() + count);
        count += blocks * level_words(world_size_);
    }
    return pack(DType::int32, words.data(), count, wire, elements_, layout::EXPONENT_BIAS, world_size_, *check_);
}

// The packet is rebuilt for a retransmission: a chunk's values stay in the tensor until its result has arrived.
void Lane::transmit(Slot &slot, std::size_t index) {
    std::uint8_t *packet = socket_->next(), *wire = packet + layout::HEADER_BYTES;
    Header header = header_of(index, slot.position);
    header.exponent = slot.exponent;
    header.flags = 0;
    if (slot.resent) header.flags = layout::FLAG_AGAIN;
    header.next_exponent = check_->next_word(slot.next_code);
    std::uint32_t part = 0;
    if (slot.prologue)
        part = pack_prologue(slot, wire);
    else if (slot.part->refused)
        std::memset(wire, 0, 4 * elements_);
    else
        part = pack(slot.part->operation->dtype, chunk_data(*slot.part, slot.chunk),
                    chunk_values(*slot.part, slot.chunk), wire, elements_, slot.exponent, world_size_, *check_);
    header.check = check_->word(header, part, header_.rank);
    write_header(packet, header);
    slot.sent_ns = now_ns();
    if (!slot.resent) {
        tail_timeout_ns_ = first_tail_ns();
        tail_due_ns_ = slot.sent_ns + tail_timeout_ns_;
    }
    slot.due_ns = slot.sent_ns + slot.timeout_ns;
    next_due_ns_ = open_ == 1 ? slot.due_ns : std::min(next_due_ns_, slot.due_ns);
    count_sent();
}

void Lane::count_sent() {
    stats_.packets_sent++;
    stats_.bytes_sent += layout::HEADER_BYTES + 4 * elements_;
}

void Lane::handle(int i, std::int64_t now) {
    const std::uint8_t *packet = socket_->packet(i);
    stats_.packets_received++;
    stats_.bytes_received += socket_->bytes(i);
    if (pool_.acknowledged) {
        take_acknowledgements(packet, socket_->bytes(i), now);
        return;
    }
    Header header;
    if (socket_->bytes(i) != layout::HEADER_BYTES + 4 * elements_ || !read_header(packet, header)) {
        stats_.foreign++;
        return;
    }
    const unsigned index = static_cast<unsigned>(header.slot) - pool_.first_slot;
    if (header.operation != layout::OPERATION_RESULT || header.job != header_.job || header.epoch != header_.epoch
        || header.element_count != elements_ || index >= slots_.size()) {
        stats_.foreign++;
        return;
    }
    Slot &slot = slots_[index];
    if (socket_->marked(i)) stats_.marked++;
    if (!slot.open || header.generation != generation_of(slot.position)) {
        came_again(slot, header.generation, now);
        return;
    }
    const Weighed weighed = weigh(packet + layout::HEADER_BYTES, elements_, limit(slot), *check_);
    const std::uint32_t off_by = check_->off_by(header, weighed.part);
    const std::optional<std::uint16_t> next_code = check_->code(header.next_exponent);
    if (off_by != 0 || !weighed.possible || !next_code || *next_code < slot.next_code
        || header.exponent != slot.exponent) {
        stats_.damaged++;  // Treated as lost: the timeout requests it again.
        if (slot.damage.notice(off_by, header.next_exponent)) stats_.spoiled++;
        return;
    }
    measure_gap(now);
    time(slot, open_ >= congestion_.size(), now);
    if (socket_->marked(i)) congestion_.marked(slot.sent_ns, now);
    finish(index, packet + layout::HEADER_BYTES, *next_code);
}

void Lane::came_again(Slot &slot, std::uint32_t generation, std::int64_t now) {
    stats_.duplicates++;
    // They fill the queue that a result waits in. Else what was sent again too soon would have more sent again.
    came_ns_ = now;
    tail_due_ns_ = std::max(tail_due_ns_, now + tail_timeout_ns_);
    if (slot.probed_ns > 0 && generation == generation_of(slot.kept_position)) {
        measure(now - slot.probed_ns, now);
        slot.probed_ns = ANSWERED;
    }
}

void Lane::measure_gap(std::int64_t now) {
    if (heard_ns_ != 0) gap_ns_ += (now - came_ns_ - gap_ns_) / 8;
}

// An overtaken result measures how long a loss took to repair, not the round trip. Of packets that were sent again,
// only those overtake others that all ranks sent again at once: they lack the same one. And only if nothing follows
// such a result: else it was the first packet's, which had waited in a queue, and so do the others. What is sent again
// then makes the queue longer. TCP undoes such a retransmission (RFC 8985, 6.2).
void Lane::time(const Slot &slot, bool limited, std::int64_t now) {
    // An acknowledgement comes after others of its slot's lane, and not at once when it is asked for.
    bool answered = false;
    if (slot.sent_ns >= overtaking_ns_) {
        if (!slot.resent) {
            measure(now - slot.sent_ns, now);
            overtaking_ns_ = slot.sent_ns;
        }
        answered = slot.resent && slot.asked && !pool_.acknowledged;
    }
    if (round_trip_.known()) congestion_.answered(limited);
    if (answered) answered_ns_ = slot.sent_ns;
    if (answered || verdict_due_ns_ != NEVER_NS)
        verdict_due_ns_ = now + std::max(round_trip_.reordering_ns(), 2 * usual_gap_ns());
    heard_ns_ = came_ns_ = now;
    tail_timeout_ns_ = first_tail_ns();
    tail_due_ns_ = now + tail_timeout_ns_;
}

// What the owner of the shard has received of it. The sums are the owner's: only the scales are for everybody.
void Lane::take_acknowledgements(const std::uint8_t *packet, std::size_t bytes, std::int64_t now) {
    Header header;
    const bool is_header = bytes >= layout::HEADER_BYTES && read_header(packet, header);
    if (!is_header || header.operation != layout::OPERATION_ACKNOWLEDGEMENT || header.job != header_.job
        || header.epoch != header_.epoch || acknowledgement_words(header) > elements_
        || bytes != layout::HEADER_BYTES + 4 * acknowledgement_words(header)) {
        stats_.foreign++;
        return;
    }
    const std::uint8_t *entries = packet + layout::HEADER_BYTES;
    const Weighed weighed = weigh(entries, acknowledgement_words(header), ANY_WORD, *check_);
    if (header.rank >= check_->ranks() || header.check != check_->word(header, weighed.part, header.rank)) {
        stats_.damaged++;
        return;
    }
    measure_gap(now);
    // All that it acknowledges was sent into that window, and nothing is sent between the entries.
    const bool limited = open_ >= congestion_.size();
    for (std::size_t i = 0; i < header.element_count; i++) {
        const Acknowledged entry = read_entry(entries + i * ENTRY_BYTES);
        const unsigned index = static_cast<unsigned>(entry.slot) - pool_.first_slot;
        if (index >= slots_.size()) {
            stats_.foreign++;
            continue;
        }
        Slot &slot = slots_[index];
        if (!slot.open || entry.generation != generation_of(slot.position)) {
            came_again(slot, entry.generation, now);
            continue;
        }
        const std::optional<std::uint16_t> next_code = check_->code(entry.next_exponent);
        const bool differs = slot.prologue && entry.exponent == KIND_DIFFERS;
        const std::int8_t *levels = differs ? nullptr : levels_of(slot, header, entries);
        const bool lacks_levels = slot.prologue && !differs && slot.part->openings.by_levels && levels == nullptr;
        if (!next_code || *next_code < slot.next_code || (!differs && entry.exponent != slot.exponent)
            || lacks_levels) {
            stats_.damaged++;
            continue;
        }
        time(slot, limited, now);
        if ((header.flags & FLAG_MARKED) != 0) congestion_.marked(slot.sent_ns, now);
        free_slot(slot, *next_code);
        if (differs)
            differ(*slot.part);
        else if (slot.prologue)
            open(slot, *next_code, levels);
        else
            is_done(slot, *next_code);
    }
}

// Of a prologue's blocks, as an acknowledgement has them; nullptr if it has none.
const std::int8_t *Lane::levels_of(const Slot &slot, const Header &header, const std::uint8_t *entries) const {
    const Openings &openings = slot.part->openings;
    if (!slot.prologue || !openings.by_levels) return nullptr;
    const auto *levels = reinterpret_cast<const std::int8_t *>(entries + ENTRY_BYTES);
    const std::size_t count = header.exponent;
    const bool are =
        count == openings.size(slot.chunk / openings.each)
        && std::all_of(levels, levels + count, [](int level) { return level >= NO_LEVEL && level < LEVELS; });
    return are ? levels : nullptr;
}

// The largest magnitude that the sum in a slot can have.
Limit Lane::limit(const Slot &slot) const {
    if (slot.prologue) return {LARGEST_SUM};
    if (slot.part->refused) return {0};
    const DType dtype = slot.part->operation->dtype;
    // An int32 tensor's chunks have one code, which their headers do not say.
    return limit_of(dtype, dtype == DType::int32 ? slot.part->codes.front() : slot.exponent, world_size_);
}

void Lane::finish(std::size_t index, const std::uint8_t *wire, std::uint16_t next_code) {
    Slot &slot = slots_[index];
    Part &part = *slot.part;
    std::memcpy(kept_.data() + index * 4 * elements_, wire, 4 * elements_);
    free_slot(slot, next_code);
    if (slot.prologue) {
        if (!is_of_kind(part.operation->kind, wire, elements_, world_size_, world_size_)) return differ(part);
        std::array<std::int8_t, MOST_ELEMENTS> levels;
        if (part.openings.by_levels)
            highest_levels(wire, part.openings.size(slot.chunk / part.openings.each), world_size_, levels.data());
        return open(slot, next_code, levels.data());
    }
    if (!part.refused)
        unpack(part.operation->dtype, wire, chunk_data(part, slot.chunk), chunk_values(part, slot.chunk), slot.exponent,
               world_size_, part.operation->average);
    is_done(slot, next_code);
}

// Its position has a result, so the next one may be sent.
void Lane::free_slot(Slot &slot, std::uint16_t next_code) {
    slot.kept_position = slot.position;
    slot.kept_exponent = slot.exponent;
    slot.kept_next = next_code;
    slot.probed_ns = 0;
    slot.open = false;
    open_--;
    free_.push_back(static_cast<std::uint64_t>(slot.position) + slots_.size());
    free_changed_ = true;
    stats_.chunks++;
}

void Lane::is_done(const Slot &slot, std::uint16_t next_code) {
    Part &part = *slot.part;
    if (slot.chunk + slots_.size() < part.chunks) part.codes[slot.chunk + slots_.size()] = next_code;
    part.done_of[slot.chunk] = 1;
    if (++part.done == part.chunks) finished_.push_back(part.operation);
}

// Every rank comes to the same conclusion. The streams are out of step from here on: whoever waits halts them.
void Lane::differ(Part &part) {
    part.operation->differs = true;
    finished_.push_back(part.operation);
}

// The blocks of a prologue may be sent, under the agreed levels if it has such, else under its code.
void Lane::open(const Slot &slot, std::uint16_t code, const std::int8_t *levels) {
    Part &part = *slot.part;
    const Openings &openings = part.openings;
    const std::size_t prologue = slot.chunk / openings.each;
    if (part.operation->dtype == DType::int32 && may_overflow(code, world_size_)) {
        // Every rank comes to the same conclusion. The positions are used all the same: generations must not be
        // skipped.
        part.refused = true;
        part.operation->overflow = code;
    }
    for (std::size_t block = 0; block < openings.size(prologue); block++)
        part.codes[slot.chunk + block] = openings.by_levels ? code_of(levels[block]) : code;
    part.opened[prologue] = 1;
}

}  // namespace netfold
