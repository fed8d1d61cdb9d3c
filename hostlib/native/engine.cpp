#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernel.h"
#include "packet.h"

namespace netfold {
namespace {

constexpr std::size_t PROLOGUE = SIZE_MAX;
constexpr std::int64_t MILLISECOND = 1000000;
constexpr std::int64_t TIMEOUT_MIN_NS = 5 * MILLISECOND, TIMEOUT_MAX_NS = 500 * MILLISECOND;
constexpr std::int64_t TIMEOUT_START_NS = 20 * MILLISECOND, POLL_EVERY_NS = 100 * MILLISECOND;

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::uint32_t doubled(std::uint16_t code) { return std::uint32_t{code} << 16 | code; }

}  // namespace

Stalled::Stalled(std::uint64_t at, double silent)
    : std::runtime_error("no result from the fabric for " + std::to_string(silent) + " s, at position "
                         + std::to_string(at)),
      position(at), seconds(silent) {}

// What is being summed: exactly one of the two pointers is set.
struct Engine::Tensor {
    float *reals = nullptr;
    std::int32_t *integers = nullptr;
    std::size_t count = 0, chunks = 0, elements = 0, done = 0, next = 0;
    bool average = false, prologue_done = false;
    std::uint64_t first = 0;               // stream position of the prologue
    std::vector<std::uint16_t> codes;      // agreed code of each chunk, known from the round before

    std::size_t size(std::size_t chunk) const { return std::min(elements, count - chunk * elements); }
    std::uint16_t own_code(std::size_t chunk) const {
        return reals ? block_code(reals + chunk * elements, size(chunk)) : std::uint16_t{0};
    }
};

void Engine::configure(const Place &place) {
    const auto power_of_two = [](int n) { return n > 0 && (n & (n - 1)) == 0; };
    if (place.world_size < 1 || place.world_size > 512) throw std::invalid_argument("world size must be in 1..512");
    if (place.rank >= place.world_size) throw std::invalid_argument("rank must be below the world size");
    if (!power_of_two(place.slots)) throw std::invalid_argument("slots must be a power of two");
    if (place.elements < 1 || place.elements > 2048) throw std::invalid_argument("elements must be in 1..2048");
    if (place.window < 0 || place.window > place.slots) throw std::invalid_argument("window must be in 0..slots");
    place_ = place;
    if (place_.window == 0) place_.window = place_.slots;
    socket_.aim(place.fabric_address, place.fabric_port, layout::HEADER_BYTES + 4 * static_cast<std::size_t>(place.elements));
    flights_.assign(static_cast<std::size_t>(place.slots), Flight{});
    block_.assign(static_cast<std::size_t>(place.elements), 0);
    position_ = 0;
    broken_ = false;
    srtt_ns_ = rttvar_ns_ = 0;
    cancelled_ = false;
}

void Engine::allreduce(float *x, std::size_t count, bool average, double deadline_s, const std::function<void()> &poll) {
    Tensor tensor;
    tensor.reals = x;
    tensor.count = count;
    tensor.average = average;
    run(tensor, deadline_s, poll);
}

void Engine::allreduce(std::int32_t *x, std::size_t count, double deadline_s, const std::function<void()> &poll) {
    Tensor tensor;
    tensor.integers = x;
    tensor.count = count;
    run(tensor, deadline_s, poll);
}

void Engine::run(Tensor &tensor, double deadline_s, const std::function<void()> &poll) {
    if (place_.world_size == 0) throw std::invalid_argument("configure() comes first");
    if (broken_) throw std::runtime_error("an earlier all-reduce ended half-way: configure() starts a new stream");
    if (!(deadline_s > 0 && deadline_s < 1e9)) throw std::invalid_argument("the deadline must be in 0..1e9 seconds");
    if (tensor.count == 0) return;
    tensor.elements = static_cast<std::size_t>(place_.elements);
    tensor.chunks = (tensor.count + tensor.elements - 1) / tensor.elements;
    tensor.codes.assign(tensor.chunks, 0);
    tensor.first = position_;
    const auto deadline_ns = static_cast<std::int64_t>(deadline_s * 1e9);
    std::int64_t heard_ns = now_ns(), polled_ns = heard_ns;
    const std::uint64_t received_before = stats_.chunks;
    std::uint64_t heard = received_before;

    // Whatever throws below leaves chunks of this tensor in flight, and the switch with half of its stream.
    broken_ = true;
    send_chunk(tensor, tensor.first, PROLOGUE);
    while (tensor.done < tensor.chunks) {
        // The self-clocking window: a slot's next chunk goes when its last result is there.
        while (tensor.prologue_done && tensor.next < tensor.chunks
               && tensor.next - tensor.done < static_cast<std::size_t>(place_.window)) {
            const std::uint64_t position = tensor.first + 1 + tensor.next;
            if (flights_[position % flights_.size()].open) break;
            send_chunk(tensor, position, tensor.next++);
        }
        socket_.flush();

        const std::int64_t before = now_ns();
        std::int64_t wake = polled_ns + POLL_EVERY_NS;
        for (const Flight &flight : flights_)
            if (flight.open) wake = std::min(wake, flight.due_ns);
        const int n = socket_.receive(std::max<std::int64_t>(wake - before, 1));
        const std::int64_t now = now_ns();
        stats_.blocked_ns += static_cast<std::uint64_t>(now - before);
        for (int i = 0; i < n; i++) handle(tensor, i);
        if (stats_.chunks != heard) heard = stats_.chunks, heard_ns = now;

        if (now - polled_ns >= POLL_EVERY_NS) {
            polled_ns = now;
            poll();
        }
        if (cancelled_) throw Cancelled();
        if (now - heard_ns > deadline_ns)
            throw Stalled(tensor.first + tensor.prologue_done + tensor.done, static_cast<double>(now - heard_ns) / 1e9);
        for (std::size_t slot = 0; slot < flights_.size(); slot++) {
            Flight &flight = flights_[slot];
            if (!flight.open || flight.due_ns > now) continue;
            flight.resent = true;
            flight.timeout_ns = std::min(2 * flight.timeout_ns, TIMEOUT_MAX_NS);
            stats_.retransmits++;
            transmit(tensor, flight, slot);
        }
    }
    position_ = tensor.first + 1 + tensor.chunks;
    broken_ = false;
}

void Engine::send_chunk(Tensor &tensor, std::uint64_t position, std::size_t chunk) {
    const std::size_t slots = flights_.size(), slot = position % slots;
    Flight &flight = flights_[slot];
    flight = Flight{};
    flight.open = true;
    flight.generation = static_cast<std::uint32_t>(position / slots);
    flight.chunk = chunk;
    if (chunk == PROLOGUE) {
        if (tensor.integers) {
            flight.next_code = magnitude_code(tensor.integers, tensor.count);
        } else {
            const std::size_t opening = std::min(slots, tensor.chunks) * tensor.elements;
            flight.next_code = block_code(tensor.reals, std::min(opening, tensor.count));
        }
    } else {
        flight.exponent = tensor.integers ? layout::EXPONENT_BIAS : tensor.codes[chunk];
        if (tensor.reals && chunk + slots < tensor.chunks) flight.next_code = tensor.own_code(chunk + slots);
    }
    flight.timeout_ns = srtt_ns_ == 0 ? TIMEOUT_START_NS
                                      : std::clamp(srtt_ns_ + 4 * rttvar_ns_, TIMEOUT_MIN_NS, TIMEOUT_MAX_NS);
    transmit(tensor, flight, slot);
}

// The packet is made anew for a retransmission: a chunk's values stay in the tensor until its result is there.
void Engine::transmit(Tensor &tensor, Flight &flight, std::size_t slot) {
    std::uint8_t *packet = socket_.next();
    if (flight.chunk == PROLOGUE) {
        std::fill(block_.begin(), block_.end(), 0);
    } else {
        const std::size_t start = flight.chunk * tensor.elements, size = tensor.size(flight.chunk);
        if (tensor.integers) std::memcpy(block_.data(), tensor.integers + start, 4 * size);
        else quantise(tensor.reals + start, block_.data(), size, flight.exponent, place_.world_size);
        std::fill(block_.begin() + static_cast<std::ptrdiff_t>(size), block_.end(), 0);
    }
    Header header{layout::OPERATION_CONTRIBUTION, place_.job, place_.rank, place_.epoch, flight.generation,
                  static_cast<std::uint16_t>(place_.first_slot + slot), static_cast<std::uint16_t>(tensor.elements),
                  flight.exponent, flight.resent ? layout::FLAG_AGAIN : std::uint16_t{0}, doubled(flight.next_code), 0};
    header.check = pack(block_.data(), packet + layout::HEADER_BYTES, tensor.elements) + position_check(header);
    write_header(packet, header);
    flight.sent_ns = now_ns();
    flight.due_ns = flight.sent_ns + flight.timeout_ns;
    stats_.packets_sent++;
    stats_.bytes_sent += layout::HEADER_BYTES + 4 * tensor.elements;
}

void Engine::handle(Tensor &tensor, int i) {
    const std::uint8_t *packet = socket_.packet(i);
    stats_.packets_received++;
    stats_.bytes_received += socket_.bytes(i);
    Header header;
    if (socket_.bytes(i) != layout::HEADER_BYTES + 4 * tensor.elements || !read_header(packet, header)
        || !socket_.from_target(i)) {
        stats_.foreign++;
        return;
    }
    const unsigned slot = static_cast<unsigned>(header.slot) - place_.first_slot;
    if (header.operation != layout::OPERATION_RESULT || header.job != place_.job || header.epoch != place_.epoch
        || header.element_count != tensor.elements || slot >= flights_.size()) {
        stats_.foreign++;
        return;
    }
    Flight &flight = flights_[slot];
    if (!flight.open || header.generation != flight.generation) {
        stats_.duplicates++;
        return;
    }
    const std::uint32_t check = unpack(packet + layout::HEADER_BYTES, block_.data(), tensor.elements)
                              + static_cast<std::uint32_t>(place_.world_size) * position_check(header);
    const auto next_code = static_cast<std::uint16_t>(header.next_exponent);
    if (check != header.check || header.next_exponent != doubled(next_code) || header.exponent != flight.exponent
        || next_code < flight.next_code) {
        stats_.damaged++;   // As good as lost: the timeout asks for it again.
        return;
    }
    if (!flight.resent) measure(now_ns() - flight.sent_ns);
    finish(tensor, flight, next_code);
}

void Engine::finish(Tensor &tensor, Flight &flight, std::uint16_t next_code) {
    flight.open = false;
    stats_.chunks++;
    if (flight.chunk == PROLOGUE) {
        if (tensor.integers && may_overflow(next_code, place_.world_size)) {
            position_ = tensor.first + 1;
            broken_ = false;  // Every rank stops here alike, with nothing in flight.
            throw SumOverflow("the sum of " + std::to_string(place_.world_size) + " int32 tensors with values up to 2^"
                              + std::to_string(next_code - layout::EXPONENT_BIAS) + " may not fit int32");
        }
        const std::size_t opening = std::min(flights_.size(), tensor.chunks);
        std::fill_n(tensor.codes.begin(), opening, next_code);
        tensor.prologue_done = true;
        return;
    }
    const std::size_t start = flight.chunk * tensor.elements, size = tensor.size(flight.chunk);
    if (tensor.integers) std::memcpy(tensor.integers + start, block_.data(), 4 * size);
    else dequantise(block_.data(), tensor.reals + start, size, flight.exponent, place_.world_size, tensor.average);
    if (flight.chunk + flights_.size() < tensor.chunks) tensor.codes[flight.chunk + flights_.size()] = next_code;
    tensor.done++;
}

// Jacobson's estimator (RFC 6298); only packets that went once are measured (Karn).
void Engine::measure(std::int64_t rtt_ns) {
    if (srtt_ns_ == 0) {
        srtt_ns_ = rtt_ns;
        rttvar_ns_ = rtt_ns / 2;
    } else {
        rttvar_ns_ += (std::abs(srtt_ns_ - rtt_ns) - rttvar_ns_) / 4;
        srtt_ns_ += (rtt_ns - srtt_ns_) / 8;
    }
    stats_.rtt_ns = srtt_ns_;
}

}  // namespace netfold
