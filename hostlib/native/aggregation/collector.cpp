#include "aggregation/collector.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "block_float/kernels.h"
#include "net/clock.h"
#include "retransmission/pacing.h"

namespace netfold {
namespace {

// Acknowledgements wait for others, but not longer than this: they take a third of the bytes then.
constexpr std::int64_t GATHER_NS = 2 * MILLISECOND_NS;

}  // namespace

// Others wait for acknowledgements, and this rank's own packets need not leave before them.
Collector::Collector(const std::string &address, std::uint16_t port) : socket_(open_socket(address, port)) {
    socket_->overtake(true);
}

void Collector::configure(const End &fabric, const Header &header, const Pool &pool, const std::vector<End> &ranks,
                          std::shared_ptr<const CheckWords> check) {
    const std::lock_guard life(life_);
    stop();
    header_ = header;
    pool_ = pool;
    world_size_ = static_cast<int>(ranks.size());
    check_ = std::move(check);
    elements_ = header.element_count;
    bytes_ = layout::HEADER_BYTES + 4 * elements_;
    ranks_.clear();
    for (std::size_t rank = 0; rank < ranks.size(); rank++)
        ranks_.push_back(rank == header.rank ? sockaddr_in{} : resolve(ranks[rank]));
    slots_.assign(static_cast<std::size_t>(pool.slots), Slot{});
    for (std::size_t index = 0; index < slots_.size(); index++) slots_[index].position = index;
    kept_.assign(slots_.size() * bytes_, 0);
    shares_.clear();
    pending_.clear();
    marked_ = false;
    finished_.clear();
    {
        const std::lock_guard lock(mutex_);
        incoming_.clear();
        next_position_ = shown_position_ = 0;
        busy_ = false;
    }
    socket_->aim(fabric, bytes_);
    quit_ = false;
    thread_ = std::thread([this] { run(); });
}

void Collector::submit(std::unique_ptr<Share> share) {
    {
        const std::lock_guard lock(mutex_);
        share->first = next_position_;
        next_position_ = share->end();
        if (!busy_) shown_heard_ns_ = now_ns();
        busy_ = true;
        incoming_.push_back(std::move(share));
    }
    socket_->interrupt();
}

std::optional<std::uint16_t> Collector::echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                             std::int64_t timeout_ns) {
    const std::lock_guard life(life_);
    stop();
    return socket_->echo(fabric, question, layout::OFFSET_RANK, timeout_ns);
}

void Collector::halt() {
    const std::lock_guard life(life_);
    stop();
}

void Collector::stop() {
    quit_ = true;
    socket_->interrupt();
    if (thread_.joinable()) thread_.join();
}

Stats Collector::stats() const {
    const std::lock_guard lock(mutex_);
    return shown_;
}

std::int64_t Collector::silent_ns() const {
    const std::lock_guard lock(mutex_);
    return busy_ ? now_ns() - shown_heard_ns_ : 0;
}

std::uint64_t Collector::position() const {
    const std::lock_guard lock(mutex_);
    return shown_position_;
}

// ---- the thread --------------------------------------------------------------------------------------------------

void Collector::run() {
    while (!quit_) {
        take_submitted();
        const std::int64_t wait =
            pending_.empty() ? LONGEST_WAIT_NS : std::max<std::int64_t>(pending_due_ns_ - now_ns(), 1);
        const std::int64_t before = now_ns();
        const int n = socket_->receive(wait);
        const std::int64_t after = now_ns();
        if (!shares_.empty()) {
            stats_.busy_ns += static_cast<std::uint64_t>(after - before);
            stats_.blocked_ns += static_cast<std::uint64_t>(after - before);
        }
        for (int i = 0; i < n; i++) handle(i);
        acknowledge(now_ns() >= pending_due_ns_);
        stats_.refused += socket_->flush();
        while (!shares_.empty() && shares_.front()->over) shares_.pop_front();
        {
            const std::lock_guard lock(mutex_);
            busy_ = !shares_.empty() || !incoming_.empty();
            shown_ = stats_;
            shown_heard_ns_ = std::max(shown_heard_ns_, heard_ns_);
            shown_position_ = shares_.empty() ? next_position_ : shares_.front()->first;
        }
        announce(finished_);
    }
}

void Collector::take_submitted() {
    std::deque<std::unique_ptr<Share>> fresh;
    {
        const std::lock_guard lock(mutex_);
        fresh.swap(incoming_);
    }
    for (auto &share : fresh) {
        Share &its = *share;
        shares_.push_back(std::move(share));
        for (Slot &slot : slots_) {
            if (!slot.early || slot.position < its.first || slot.position >= its.end()) continue;
            slot.early = false;
            Header header;
            const std::uint8_t *packet = kept(slot);
            if (read_header(packet, header)) take(its, slot, header, packet + layout::HEADER_BYTES);
        }
    }
}

bool Collector::is_sum(int i, Header &header) const {
    return socket_->bytes(i) == bytes_ && read_header(socket_->packet(i), header)
           && header.operation == layout::OPERATION_SUM && header.job == header_.job && header.epoch == header_.epoch
           && header.element_count == header_.element_count
           && static_cast<unsigned>(header.slot) - pool_.first_slot < slots_.size();
}

void Collector::handle(int i) {
    stats_.packets_received++;
    stats_.bytes_received += socket_->bytes(i);
    Header header;
    if (!is_sum(i, header)) {
        stats_.foreign++;
        return;
    }
    if (socket_->marked(i)) {
        stats_.marked++;
        marked_ = true;
    }
    Slot &slot = slots_[static_cast<std::size_t>(header.slot - pool_.first_slot)];
    if (header.generation == generation_of(slot.position)) {
        const std::uint8_t *packet = socket_->packet(i);
        if (Share *share = share_of(slot.position)) {
            take(*share, slot, header, packet + layout::HEADER_BYTES);
        } else {
            std::memcpy(kept(slot), packet, bytes_);
            slot.early = true;
        }
        return;
    }
    stats_.duplicates++;
    if (slot.position < slots_.size() || header.generation != generation_of(slot.position - slots_.size())) return;
    // Somebody lacks what was said of it. A sum names who asked for it, unless that is a switch.
    stats_.retransmits++;
    if (header.rank < ranks_.size())
        say({slot.last}, slot.levels, {ranks_[header.rank]});
    else
        say({slot.last}, slot.levels, ranks_);
}

Share *Collector::share_of(std::uint64_t position) {
    for (const auto &share : shares_)
        if (position >= share->first && position < share->end()) return share.get();
    return nullptr;
}

// The next exponent's code; none if the sum is damaged. The owner adds nothing in the switch: to what its word would
// be, the others' words are added here.
std::optional<std::uint16_t> Collector::verified(const Share &share, Slot &slot, const Header &header,
                                                 const std::uint8_t *vector) {
    const bool prologue = slot.position - share.first < share.openings.prologues;
    const bool is_int32 = share.operation->dtype == DType::int32;
    const Limit limit = prologue   ? Limit{LARGEST_SUM}
                        : is_int32 ? limit_of(DType::int32, share.code, world_size_)
                                   : limit_of(DType::float32, header.exponent, world_size_);
    const Weighed weighed = weigh(vector, elements_, limit, *check_);
    Header all = header;
    all.check += check_->word(header, 0, header_.rank);
    const std::uint32_t off_by = check_->off_by(all, weighed.part);
    const std::optional<std::uint16_t> next_code = check_->code(header.next_exponent);
    const bool right = prologue   ? header.exponent == layout::EXPONENT_ZERO
                       : is_int32 ? header.exponent == layout::EXPONENT_BIAS
                                  : true;
    if (off_by == 0 && weighed.possible && next_code && right) return next_code;
    stats_.damaged++;  // Treated as lost: the other ranks ask again.
    if (slot.damage.notice(off_by, header.next_exponent)) stats_.spoiled++;
    return std::nullopt;
}

void Collector::take(Share &share, Slot &slot, const Header &header, const std::uint8_t *vector) {
    if (share.over) return;
    const std::optional<std::uint16_t> found = verified(share, slot, header, vector);
    if (!found) return;
    std::uint16_t next_code = *found, exponent = header.exponent;
    slot.levels.clear();
    if (slot.position - share.first < share.openings.prologues) {
        if (!open(share, slot, vector, next_code)) exponent = KIND_DIFFERS;
    } else {
        const std::size_t chunk = slot.position - share.first - share.openings.prologues,
                          values = std::min(elements_, share.count - chunk * elements_);
        const bool is_int32 = share.operation->dtype == DType::int32;
        if (!share.operation->overflow)
            unpack(is_int32 ? DType::int32 : DType::float32, vector, share.sums + chunk * elements_ * 4, values,
                   header.exponent, world_size_, false);
        share.over = ++share.done == share.chunks;
        stats_.chunks++;
    }
    if (share.over) finished_.push_back(share.operation);
    slot.last = {header.generation, check_->next_word(next_code), header.slot, exponent};
    slot.position += slots_.size();
    slot.damage.forget();
    heard_ns_ = now_ns();
    if (!slot.levels.empty()) {
        say({slot.last}, slot.levels, ranks_);
        return;
    }
    if (pending_.empty()) pending_due_ns_ = heard_ns_ + GATHER_NS;
    pending_.push_back(slot.last);
    // The others wait for a prologue's, and nothing comes after a tensor's last.
    if (exponent == layout::EXPONENT_ZERO || exponent == KIND_DIFFERS || share.over) pending_due_ns_ = heard_ns_;
    if (pending_.size() >= sums_told_together(slots_.size(), elements_)) acknowledge(true);
}

// Returns whether the ranks sum the same kind of tensor. code: of the others' largest values, then of all ranks'.
bool Collector::open(Share &share, Slot &slot, const std::uint8_t *vector, std::uint16_t &code) {
    Operation &operation = *share.operation;
    if (!is_of_kind(operation.kind, vector, elements_, world_size_, world_size_ - 1)) {
        operation.differs = true;
        share.over = true;
        return false;
    }
    const Openings &openings = share.openings;
    if (openings.by_levels) {
        slot.levels.resize(openings.size(slot.position - share.first));
        highest_levels(vector, slot.levels.size(), world_size_, slot.levels.data());
    }
    if (operation.dtype != DType::int32) return true;
    share.code = code = std::max(code, operation.magnitude);
    if (may_overflow(code, world_size_)) operation.overflow = code;
    return true;
}

void Collector::acknowledge(bool now) {
    if (!now || pending_.empty()) return;
    say(pending_, {}, ranks_, std::exchange(marked_, false) ? FLAG_MARKED : std::uint16_t{0});
    pending_.clear();
}

// levels: of a prologue, which is the only entry then.
void Collector::say(const std::vector<Acknowledged> &entries, const std::vector<std::int8_t> &levels,
                    const std::vector<sockaddr_in> &to, std::uint16_t flags) {
    std::uint8_t datagram[layout::HEADER_BYTES + MOST_ENTRIES * ENTRY_BYTES + MOST_ELEMENTS];
    Header header = header_;
    header.operation = layout::OPERATION_ACKNOWLEDGEMENT;
    header.flags = flags;
    header.exponent = static_cast<std::uint16_t>(levels.size());
    for (std::size_t from = 0; from < entries.size(); from += header.element_count) {
        const std::size_t count = std::min(entries.size() - from, most_entries(elements_));
        std::uint8_t *words = datagram + layout::HEADER_BYTES, *end = words + count * ENTRY_BYTES;
        for (std::size_t i = 0; i < count; i++) write_entry(words + i * ENTRY_BYTES, entries[from + i]);
        header.element_count = static_cast<std::uint16_t>(count);
        const std::size_t words_in_all = acknowledgement_words(header);
        std::fill(end, words + 4 * words_in_all, 0);
        std::copy(levels.begin(), levels.end(), reinterpret_cast<std::int8_t *>(end));
        header.check = check_->word(header, weigh(words, words_in_all, ANY_WORD, *check_).part, header.rank);
        write_header(datagram, header);
        const std::size_t bytes = layout::HEADER_BYTES + 4 * words_in_all;
        for (const sockaddr_in &rank : to) {
            if (rank.sin_port == 0) continue;  // this one
            socket_->send_to(rank, datagram, bytes, false);
            stats_.packets_sent++;
            stats_.bytes_sent += bytes;
        }
    }
}

}  // namespace netfold
