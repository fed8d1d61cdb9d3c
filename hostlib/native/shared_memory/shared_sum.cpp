#include "shared_memory/shared_sum.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "net/clock.h"

namespace netfold {
namespace {

constexpr std::size_t WORD = 4;
constexpr std::size_t SMALL_BYTES = 16 << 10;  // adding so much takes less time than to meet once more
constexpr std::int64_t SPINS_NS = 50'000;      // about what it takes to sleep and to be woken

// Of processes that share the word.
void sleep_on(std::atomic<std::uint32_t> &word, std::uint32_t while_it_is, std::int64_t longest_ns) {
    const timespec longest{longest_ns / 1'000'000'000, longest_ns % 1'000'000'000};
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t *>(&word), FUTEX_WAIT, while_it_is, &longest, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t> &word) {
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t *>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class T>
T sum(T a, T b) {
    return a + b;
}

// As two's complement, which wraps.
template <>
std::int32_t sum(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}

}  // namespace

std::size_t SharedSum::bytes(int ranks, std::size_t part_bytes) {
    return static_cast<std::size_t>(ranks) * sizeof(Place)
           + BUFFERS * (static_cast<std::size_t>(ranks) + 1) * part_bytes;
}

SharedSum::SharedSum(std::uint8_t *memory, int rank, int ranks, std::size_t part_bytes, bool spins)
    : places_(reinterpret_cast<Place *>(memory)),
      areas_(memory + static_cast<std::size_t>(ranks) * sizeof(Place)),
      rank_(rank),
      ranks_(ranks),
      part_bytes_(part_bytes),
      spins_(spins) {
    if (ranks < 1 || rank < 0 || rank >= ranks) throw std::invalid_argument("rank must be in 0..ranks - 1");
    if (part_bytes == 0 || part_bytes % sizeof(Place) != 0)
        throw std::invalid_argument("a part must have a multiple of 64 bytes");
    if (reinterpret_cast<std::uintptr_t>(memory) % alignof(Place) != 0)
        throw std::invalid_argument("the memory must be aligned to 64 bytes");
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share them");
}

void SharedSum::begin(const Told &told, void *x, std::uint32_t note) {
    if (under_way_) throw std::logic_error("a tensor is under way, or the ranks sum different ones");
    told_ = told;
    x_ = static_cast<std::uint8_t *>(x);
    parts_ = (told.count * WORD + part_bytes_ - 1) / part_bytes_;
    is_small_ = told.count * WORD <= std::min(part_bytes_, SMALL_BYTES);
    next_ = 0;
    last_ = is_small_ ? 1 : told.way == Way::broadcast ? parts_ : parts_ + 1;
    under_way_ = true;
    arrived_ = false;
    places_[rank_].told[tensors_ % BUFFERS] = told;
    places_[rank_].note[tensors_ % BUFFERS] = note;
}

// The last step only reads sums: nobody needs to know when it is over, as what it reads is not written again before
// all have made the first step of the next tensor.
bool SharedSum::go_on(std::int64_t patience_ns) {
    while (under_way_) {
        if (!arrived_) {
            step();
            if (next_ > last_) {
                under_way_ = false;
                note_ = places_[0].note[tensors_ % BUFFERS];
                base_ += parts_;
                tensors_++;
                break;
            }
            arrive();
        }
        const std::int64_t before = now_ns();
        const bool met = meet(patience_ns);
        summing_ns_ += now_ns() - before;
        if (!met || (next_ == 1 && !agree())) return false;
        arrived_ = false;
    }
    return true;
}

void SharedSum::step() {
    const std::int64_t begun = now_ns();
    const bool broadcasts = told_.way == Way::broadcast;
    if (is_small_) {
        next_ == 0 ? write_all() : finish_all();
    } else {
        if (next_ < parts_) write(next_);
        if (!broadcasts && next_ >= 1 && next_ <= parts_) add(next_ - 1);
    }
    const std::int64_t added = now_ns();
    if (!is_small_ && broadcasts && next_ >= 1) read_first(next_ - 1);
    if (!is_small_ && !broadcasts && next_ >= 2) read(next_ - 2);
    summing_ns_ += added - begun;
    reading_ns_ += now_ns() - added;
    next_++;
}

// What is another rank's to add; or to read.
void SharedSum::write(std::size_t part) {
    if (told_.way == Way::broadcast) {
        if (rank_ == 0) std::memcpy(written(part, 0), values(part, 0), size_of(part) * WORD);
        return;
    }
    for (int other = 0; other < ranks_; other++) {
        if (other == rank_) continue;
        const auto [first, size] = share_of(part, other);
        std::memcpy(written(part, rank_) + first * WORD, values(part, first), size * WORD);
    }
}

void SharedSum::add(std::size_t part) {
    const Range share = share_of(part, rank_);
    std::uint8_t *mine = values(part, share.first), *total = sums(part) + share.first * WORD;
    const auto from = [&](int rank) { return rank == rank_ ? mine : written(part, rank) + share.first * WORD; };
    add_values(from, total, share.size);
    if (reads()) std::memcpy(mine, total, share.size * WORD);
}

void SharedSum::write_all() {
    if (told_.way != Way::broadcast || rank_ == 0) std::copy_n(x_, told_.count * WORD, written(0, rank_));
}

void SharedSum::finish_all() {
    if (told_.way == Way::broadcast)
        read_first(0);
    else if (reads())
        add_values([this](int rank) { return written(0, rank); }, x_, told_.count);
}

template <class From>
void SharedSum::add_values(const From &from, std::uint8_t *total, std::size_t size) {
    if (told_.type == Type::float32)
        add_typed<float>(from, total, size);
    else
        add_typed<std::int32_t>(from, total, size);
}

template <class T, class From>
void SharedSum::add_typed(const From &from, std::uint8_t *to, std::size_t size) {
    const auto of = [&from](int rank) { return reinterpret_cast<const T *>(from(rank)); };
    auto *total = reinterpret_cast<T *>(to);
    const T *first = of(0);
    if (ranks_ == 1) {
        std::copy_n(first, size, total);
    } else {
        const T *second = of(1);
        for (std::size_t i = 0; i < size; i++) total[i] = sum(first[i], second[i]);
    }
    for (int rank = 2; rank < ranks_; rank++) {
        const T *next = of(rank);
        for (std::size_t i = 0; i < size; i++) total[i] = sum(total[i], next[i]);
    }
    if (told_.way == Way::average)
        for (std::size_t i = 0; i < size; i++) total[i] = total[i] / static_cast<T>(ranks_);
}

void SharedSum::read(std::size_t part) {
    if (!reads()) return;
    for (int other = 0; other < ranks_; other++) {
        if (other == rank_) continue;
        const auto [first, size] = share_of(part, other);
        std::memcpy(values(part, first), sums(part) + first * WORD, size * WORD);
    }
}

void SharedSum::read_first(std::size_t part) {
    if (rank_ != 0 && told_.count > 0) std::memcpy(values(part, 0), written(part, 0), size_of(part) * WORD);
}

void SharedSum::arrive() {
    arrived_ = true;
    Place &mine = places_[rank_];
    mine.steps.store(++steps_);
    for (int other = 0; other < ranks_; other++)
        if (other != rank_ && places_[other].waiting.load() != 0) {
            wake_all(mine.steps);
            break;
        }
}

bool SharedSum::is_behind(int other) const {
    return static_cast<std::int32_t>(places_[other].steps.load() - steps_) < 0;
}

bool SharedSum::meet(std::int64_t patience_ns) {
    const std::int64_t begun = now_ns();
    for (int other = 0; other < ranks_; other++) {
        if (other == rank_) continue;
        std::atomic<std::uint32_t> &theirs = places_[other].steps;
        while (is_behind(other)) {
            const std::int64_t waited = now_ns() - begun;
            if (waited >= patience_ns) return false;
            if (spins_ && waited < SPINS_NS) {
                relax();
                continue;
            }
            std::atomic<std::uint32_t> &waiting = places_[rank_].waiting;
            waiting.store(1);
            const std::uint32_t seen = theirs.load();
            if (is_behind(other)) sleep_on(theirs, seen, patience_ns - waited);
            waiting.store(0);
        }
    }
    return true;
}

bool SharedSum::agree() {
    const auto told = [this](int rank) { return places_[rank].told[tensors_ % BUFFERS]; };
    for (int other = 0; other < ranks_; other++)
        if (!(told(other) == told(rank_))) {
            for (int rank = 0; rank < ranks_; rank++) differing_.push_back(told(rank));
            return false;
        }
    return true;
}

std::vector<int> SharedSum::missing() const {
    std::vector<int> out;
    for (int other = 0; arrived_ && other < ranks_; other++)
        if (other != rank_ && is_behind(other)) out.push_back(other);
    return out;
}

std::vector<int> SharedSum::departed() const {
    std::vector<int> out;
    for (int other = 0; other < ranks_; other++)
        if (places_[other].left.load() != 0) out.push_back(other);
    return out;
}

void SharedSum::leave() { places_[rank_].left.store(1); }

void SharedSum::beat() { places_[rank_].beats.fetch_add(1); }

std::vector<std::uint32_t> SharedSum::beats() const {
    std::vector<std::uint32_t> out;
    for (int rank = 0; rank < ranks_; rank++) out.push_back(places_[rank].beats.load());
    return out;
}

std::size_t SharedSum::size_of(std::size_t part) const {
    const std::size_t each = part_bytes_ / WORD;
    return std::min(each, told_.count - part * each);
}

SharedSum::Range SharedSum::share_of(std::size_t part, int rank) const {
    const std::size_t size = size_of(part);
    const auto r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(ranks_);
    const std::size_t first = r * size / n;
    return {first, (r + 1) * size / n - first};
}

std::uint8_t *SharedSum::values(std::size_t part, std::size_t element) const {
    return x_ + part * part_bytes_ + element * WORD;
}

std::uint8_t *SharedSum::written(std::size_t part, int by) const {
    const std::size_t area =
        (base_ + part) % BUFFERS * (static_cast<std::size_t>(ranks_) + 1) + static_cast<std::size_t>(by);
    return areas_ + area * part_bytes_;
}

}  // namespace netfold
