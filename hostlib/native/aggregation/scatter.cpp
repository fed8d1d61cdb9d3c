#include "aggregation/scatter.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace netfold {

Scatter::Scatter(const std::string &address, int rank, int world_size) : rank_(rank), world_size_(world_size) {
    if (world_size < 2 || rank < 0 || rank >= world_size)
        throw std::invalid_argument("rank must be in 0..world size - 1, of two ranks at least");
    collector_ = std::make_unique<Collector>(address, std::uint16_t{0});
    for (int other = 0; other < world_size; other++)
        lanes_.push_back(other == rank ? nullptr : std::make_unique<Lane>(address, std::uint16_t{0}, std::nullopt));
}

// Their threads call finished(), so they must end before the members that it uses.
Scatter::~Scatter() {
    lanes_.clear();
    collector_.reset();
}

std::vector<std::uint16_t> Scatter::ports() const {
    std::vector<std::uint16_t> out;
    for (const auto &lane : lanes_) out.push_back(lane ? lane->port() : collector_->port());
    return out;
}

std::uint64_t Scatter::configure(const Place &place, const std::vector<std::vector<End>> &ends) {
    const std::size_t ranks = lanes_.size();
    if (place.world_size != world_size_ || place.rank != rank_)
        throw std::invalid_argument("the place must be this rank's");
    if (place.elements < 1 || place.elements > 2048) throw std::invalid_argument("elements must be in 1..2048");
    if (place.check == nullptr || place.check->elements() != static_cast<std::size_t>(place.elements)
        || place.check->ranks() != ranks)
        throw std::invalid_argument("check words must be of as many elements and ranks");
    if (most_entries(static_cast<std::size_t>(place.elements)) == 0)
        throw std::invalid_argument("acknowledgements need three elements");
    const bool whole = std::all_of(ends.begin(), ends.end(), [&](const auto &each) { return each.size() == ranks; });
    if (place.pools.size() != ranks || ends.size() != ranks || !whole)
        throw std::invalid_argument("a pool of slots for each rank, and a port of each rank for each pool");
    for (const Pool &pool : place.pools)
        if (pool.slots <= 0 || (pool.slots & (pool.slots - 1)) != 0 || pool.first_slot + pool.slots > 1 << 16)
            throw std::invalid_argument("slots must be a power of two, and below 65536");
    for (const Pool &pool : place.pools)
        if (place.window < 0 || place.window > pool.slots) throw std::invalid_argument("window must be in 0..slots");
    halt();
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    elements_ = place.elements;
    slots_ = static_cast<std::size_t>(place.pools.front().slots);
    Header header{};
    header.job = place.job;
    header.rank = place.rank;
    header.epoch = place.epoch;
    header.element_count = static_cast<std::uint16_t>(place.elements);
    std::vector<End> here;
    for (std::size_t rank = 0; rank < ranks; rank++) {
        Pool pool = place.pools[rank];
        here.push_back(ends[rank][static_cast<std::size_t>(rank_)]);
        if (!lanes_[rank]) continue;
        pool.server = ends[rank][rank];
        pool.acknowledged = true;
        lanes_[rank]->configure(place.fabric, header, pool, world_size_, place.window, place.check);
    }
    collector_->configure(place.fabric, header, place.pools[static_cast<std::size_t>(rank_)], here, place.check);
    halted_ = cancelled_ = false;
    return tickets_;
}

std::optional<std::uint16_t> Scatter::echo(std::size_t pool, const End &fabric,
                                           const std::vector<std::uint8_t> &question, std::int64_t timeout_ns) {
    if (pool >= lanes_.size()) throw std::invalid_argument("there is no pool " + std::to_string(pool));
    return lanes_[pool] ? lanes_[pool]->echo(fabric, question, timeout_ns)
                        : collector_->echo(fabric, question, timeout_ns);
}

std::uint64_t Scatter::submit(DType dtype, void *x, std::size_t count, bool average, void *sums) {
    const std::size_t ranks = lanes_.size();
    const std::uint16_t magnitude = dtype == DType::int32 ? block_code(dtype, x, count * ranks) : layout::EXPONENT_ZERO;
    if (count == 0) throw std::invalid_argument("an empty shard");
    const std::lock_guard lock(mutex_);
    if (halted_) throw std::logic_error("halted: configure() starts a new stream");
    const auto elements = static_cast<std::size_t>(elements_);
    auto operation = std::make_shared<Operation>();
    operation->dtype = dtype;
    operation->average = average;
    operation->ticket = ++tickets_;
    operation->magnitude = magnitude;
    operation->kind = kind_of(dtype, count * ranks, average);
    operation->parts = world_size_;
    operation->finished = [this] {
        // Under the lock: a waiter that has just checked would otherwise miss the notification.
        const std::lock_guard finishing(mutex_);
        done_.notify_all();
    };
    waiting_.emplace(operation->ticket, operation);
    const std::size_t chunks = (count + elements - 1) / elements;
    const Openings openings(dtype, chunks, slots_, elements, world_size_);
    for (std::size_t rank = 0; rank < ranks; rank++) {
        if (!lanes_[rank]) {
            auto share = std::make_unique<Share>();
            share->operation = operation;
            share->sums = static_cast<std::uint8_t *>(sums);
            share->count = count;
            share->chunks = chunks;
            share->openings = openings;
            collector_->submit(std::move(share));
            continue;
        }
        std::uint8_t *shard = static_cast<std::uint8_t *>(x) + rank * count * bytes_of(dtype);
        lanes_[rank]->submit(std::make_unique<Part>(operation, shard, count, chunks, openings));
    }
    return operation->ticket;
}

bool Scatter::wait(std::uint64_t ticket, double seconds) {
    std::unique_lock lock(mutex_);
    const auto found = waiting_.find(ticket);
    if (found == waiting_.end()) throw std::invalid_argument("no ticket " + std::to_string(ticket) + " is outstanding");
    const std::shared_ptr<Operation> operation = found->second;
    // A refused tensor's sums are nobody's: after halt() nothing else may be waited for.
    const auto over = [&] {
        return cancelled_ || operation->parts == 0 || operation->differs || (halted_ && operation->overflow != 0);
    };
    if (!done_.wait_for(lock, std::chrono::duration<double>(seconds), over)) return false;
    if (cancelled_) throw Cancelled();
    waiting_.erase(ticket);
    if (operation->differs) throw TensorsDiffer();
    if (const std::uint16_t code = operation->overflow)
        throw SumOverflow("the sum of " + std::to_string(world_size_) + " int32 tensors with values up to 2^"
                          + std::to_string(code - layout::EXPONENT_BIAS) + " may not fit int32");
    return true;
}

void Scatter::halt() {
    {
        const std::lock_guard lock(mutex_);
        halted_ = true;
    }
    // Without the lock: a lane may be about to report that something is finished.
    for (const auto &lane : lanes_)
        if (lane) lane->halt();
    collector_->halt();
}

double Scatter::silent() const {
    std::int64_t longest = collector_->silent_ns();
    for (const auto &lane : lanes_)
        if (lane) longest = std::max(longest, lane->silent_ns());
    return static_cast<double>(longest) / 1e9;
}

void Scatter::cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    done_.notify_all();
}

Stats Scatter::stats() const {
    Stats total = collector_->stats();
    for (const auto &lane : lanes_)
        if (lane) total.add(lane->stats());
    return total;
}

std::uint64_t Scatter::position() const {
    std::uint64_t total = collector_->position();
    for (const auto &lane : lanes_)
        if (lane) total += lane->position();
    return total;
}

}  // namespace netfold
