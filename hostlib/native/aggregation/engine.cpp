#include "aggregation/engine.h"

#include <algorithm>
#include <chrono>

#include "aggregation/lane_cores.h"

namespace netfold {
namespace {

std::size_t chunks_of(std::size_t count, std::size_t elements) { return (count + elements - 1) / elements; }

}  // namespace

Stalled::Stalled(std::uint64_t position, double silent_s)
    : std::runtime_error("no result from the fabric for " + std::to_string(silent_s) + " s, at position "
                         + std::to_string(position)) {}

Engine::Engine(const std::string &address, const std::vector<std::uint16_t> &ports) {
    if (ports.empty()) throw std::invalid_argument("an engine needs a port");
    const std::vector<std::optional<int>> cores = lane_cores(ports.size());
    for (std::size_t i = 0; i < ports.size(); i++)
        lanes_.push_back(std::make_unique<Lane>(address, ports[i], cores[i]));
}

// The lanes' threads call finished(), so they must end before the members that it uses.
Engine::~Engine() { lanes_.clear(); }

std::vector<std::uint16_t> Engine::ports() const {
    std::vector<std::uint16_t> out;
    for (const auto &lane : lanes_) out.push_back(lane->port());
    return out;
}

std::uint64_t Engine::configure(const Place &place) {
    const auto power_of_two = [](int n) { return n > 0 && (n & (n - 1)) == 0; };
    if (place.world_size < 1 || place.world_size > 512) throw std::invalid_argument("world size must be in 1..512");
    if (place.rank >= place.world_size) throw std::invalid_argument("rank must be below the world size");
    if (place.fabric.port == 0) throw std::invalid_argument("the fabric's port must be in 1..65535");
    if (place.elements < 1 || static_cast<std::size_t>(place.elements) > MOST_ELEMENTS)
        throw std::invalid_argument("elements must be in 1..2048");
    if (place.check == nullptr || place.check->elements() != static_cast<std::size_t>(place.elements)
        || place.check->ranks() != static_cast<std::size_t>(place.world_size))
        throw std::invalid_argument("check words must be of as many elements and ranks");
    if (place.pools.size() != lanes_.size())
        throw std::invalid_argument(std::to_string(place.pools.size()) + " pools of slots for "
                                    + std::to_string(lanes_.size()) + " ports");
    for (const Pool &pool : place.pools) {
        if (!power_of_two(pool.slots)) throw std::invalid_argument("slots must be a power of two");
        if (place.window < 0 || place.window > pool.slots) throw std::invalid_argument("window must be in 0..slots");
        if (pool.levels < 1) throw std::invalid_argument("levels must be at least 1");
        if (pool.first_slot + pool.slots > 1 << 16) throw std::invalid_argument("slots must be below 65536");
        if (pool.slots != place.pools.front().slots) throw std::invalid_argument("all pools must have as many slots");
    }
    {
        const std::lock_guard lock(mutex_);
        if (!waiting_.empty() && !halted_) throw std::logic_error("something is under way: halt() comes first");
    }
    halt();
    const std::lock_guard lock(mutex_);
    place_ = place;
    waiting_.clear();
    Header header{};
    header.job = place.job;
    header.rank = place.rank;
    header.epoch = place.epoch;
    header.element_count = static_cast<std::uint16_t>(place.elements);
    for (std::size_t i = 0; i < lanes_.size(); i++)
        lanes_[i]->configure(place.fabric, header, place.pools[i], place.world_size, place.window, place.check);
    halted_ = cancelled_ = false;
    return tickets_;
}

std::uint64_t Engine::submit(DType dtype, void *x, std::size_t count, bool average) {
    // Scans the whole tensor, so not under the lock, which the lanes need.
    const std::uint16_t magnitude = dtype == DType::int32 ? block_code(dtype, x, count) : layout::EXPONENT_ZERO;
    const std::lock_guard lock(mutex_);
    if (place_.world_size == 0) throw std::logic_error("configure() comes first");
    if (halted_) throw std::logic_error("halted: configure() starts a new stream");
    const auto elements = static_cast<std::size_t>(place_.elements);
    const auto slots = static_cast<std::size_t>(place_.pools.front().slots);
    auto operation = std::make_shared<Operation>();
    operation->dtype = dtype;
    operation->average = average;
    operation->ticket = ++tickets_;
    operation->finished = [this] {
        // Under the lock: a waiter that has just checked would otherwise miss the notification.
        const std::lock_guard finishing(mutex_);
        done_.notify_all();
    };
    operation->magnitude = magnitude;
    operation->kind = kind_of(dtype, count, average);
    Waiting waiting{operation, chunks_of(count, elements)};
    std::vector<std::unique_ptr<Part>> parts(lanes_.size());
    for (std::size_t i = 0; i < lanes_.size(); i++) {
        const std::size_t from = i * waiting.chunks / lanes_.size(), to = (i + 1) * waiting.chunks / lanes_.size();
        if (from == to) continue;
        std::uint8_t *values = static_cast<std::uint8_t *>(x) + from * elements * bytes_of(dtype);
        const Openings openings(dtype, to - from, slots, elements, place_.world_size);
        parts[i] = std::make_unique<Part>(operation, values, std::min(to * elements, count) - from * elements,
                                          to - from, openings);
        operation->parts++;
    }
    waiting_.emplace(operation->ticket, std::move(waiting));
    for (std::size_t i = 0; i < lanes_.size(); i++)
        if (parts[i]) lanes_[i]->submit(std::move(parts[i]));
    return operation->ticket;
}

std::optional<std::uint16_t> Engine::echo(std::size_t lane, const End &fabric,
                                          const std::vector<std::uint8_t> &question, std::int64_t timeout_ns) {
    if (lane >= lanes_.size()) throw std::invalid_argument("there is no lane " + std::to_string(lane));
    return lanes_[lane]->echo(fabric, question, timeout_ns);
}

bool Engine::wait(std::uint64_t ticket, double seconds) {
    std::unique_lock lock(mutex_);
    const auto found = waiting_.find(ticket);
    if (found == waiting_.end()) throw std::invalid_argument("no ticket " + std::to_string(ticket) + " is outstanding");
    const std::shared_ptr<Operation> operation = found->second.operation;
    const auto over = [&] { return cancelled_ || operation->parts == 0 || operation->differs; };
    if (!done_.wait_for(lock, std::chrono::duration<double>(seconds), over)) return false;
    if (cancelled_) throw Cancelled();
    waiting_.erase(ticket);
    if (operation->differs) throw TensorsDiffer();
    if (const std::uint16_t code = operation->overflow)
        throw SumOverflow("the sum of " + std::to_string(place_.world_size) + " int32 tensors with values up to 2^"
                          + std::to_string(code - layout::EXPONENT_BIAS) + " may not fit int32");
    return true;
}

void Engine::halt() {
    {
        const std::lock_guard lock(mutex_);
        halted_ = true;
    }
    // Without the lock: a lane may be about to report that something is finished.
    for (const auto &lane : lanes_) lane->halt();
}

bool Engine::halted() const {
    const std::lock_guard lock(mutex_);
    return halted_;
}

void Engine::require_halted() const {
    if (!halted()) throw std::logic_error("halt() comes first");
}

std::size_t Engine::slots() const {
    std::size_t total = 0;
    for (const auto &lane : lanes_) total += lane->slots();
    return total;
}

void Engine::retained(std::int64_t *positions, std::uint32_t *words) const {
    require_halted();
    const std::size_t each = 1 + static_cast<std::size_t>(place_.elements);
    for (const auto &lane : lanes_)
        for (std::size_t slot = 0; slot < lane->slots(); slot++, positions++, words += each)
            lane->retained(slot, *positions, words);
}

void Engine::restore(const std::int64_t *positions, const std::uint32_t *words) {
    require_halted();
    const std::size_t each = 1 + static_cast<std::size_t>(place_.elements);
    for (const auto &lane : lanes_)
        for (std::size_t slot = 0; slot < lane->slots(); slot++, positions++, words += each)
            lane->restore(slot, *positions, words);
}

std::vector<Remainder> Engine::unfinished() const {
    require_halted();
    const std::lock_guard lock(mutex_);
    std::vector<Remainder> out;
    for (const auto &[ticket, waiting] : waiting_) {
        if (waiting.operation->parts == 0) continue;
        Remainder left{ticket, std::vector<std::uint8_t>(waiting.chunks, 0)};
        for (std::size_t i = 0; i < lanes_.size(); i++) {
            const Part *part = lanes_[i]->part(waiting.operation.get());
            const auto begin = left.done.begin() + static_cast<std::ptrdiff_t>(i * waiting.chunks / lanes_.size());
            const auto end = left.done.begin() + static_cast<std::ptrdiff_t>((i + 1) * waiting.chunks / lanes_.size());
            // A part that the lane no longer has is done.
            if (part)
                std::copy(part->done_of.begin(), part->done_of.end(), begin);
            else
                std::fill(begin, end, 1);
        }
        // Nothing of a refused tensor was summed, whichever positions are complete: the fallback refuses it again.
        if (waiting.operation->overflow) std::fill(left.done.begin(), left.done.end(), 0);
        out.push_back(std::move(left));
    }
    return out;
}

double Engine::silent() const {
    std::int64_t longest = 0;
    for (const auto &lane : lanes_) longest = std::max(longest, lane->silent_ns());
    return static_cast<double>(longest) / 1e9;
}

void Engine::cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    done_.notify_all();
}

Stats Engine::stats() const {
    Stats total;
    for (const auto &lane : lanes_) total.add(lane->stats());
    return total;
}

std::uint64_t Engine::position() const {
    std::uint64_t total = 0;
    for (const auto &lane : lanes_) total += lane->position();
    return total;
}

}  // namespace netfold
