// One rank's end of the slot protocol: sums tensors with the other ranks' through the switch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "socket.h"

namespace netfold {

// This rank's place in a job, as the controller gave it.
struct Place {
    std::string fabric_address;
    std::uint16_t fabric_port = 0, job = 0, rank = 0, first_slot = 0;
    std::uint32_t epoch = 0;
    int world_size = 0, slots = 0, elements = 0, window = 0;
};

struct Stats {
    std::uint64_t packets_sent = 0, packets_received = 0, retransmits = 0, duplicates = 0, damaged = 0, foreign = 0;
    std::uint64_t bytes_sent = 0, bytes_received = 0, chunks = 0, blocked_ns = 0;
    std::int64_t rtt_ns = 0;
};

// No result for the whole deadline while something was outstanding.
struct Stalled : std::runtime_error {
    std::uint64_t position;
    double seconds;
    Stalled(std::uint64_t at, double silent);
};

struct Cancelled : std::runtime_error {
    Cancelled() : std::runtime_error("cancelled") {}
};

// The sum of the ranks' int32 tensors might not fit: nothing was summed.
struct SumOverflow : std::overflow_error {
    using std::overflow_error::overflow_error;
};

class Engine {
public:
    Engine(const std::string &address, std::uint16_t port) : socket_(address, port) {}

    std::string address() const { return socket_.address(); }
    std::uint16_t port() const { return socket_.port(); }

    // Throws std::invalid_argument for an impossible place. Starts the stream at position 0.
    void configure(const Place &place);

    // In place. `poll` is called about every 100 ms and may throw. Not for several threads at once.
    // After an exception other than SumOverflow the stream is broken: every call throws until configure().
    void allreduce(float *x, std::size_t count, bool average, double deadline_s, const std::function<void()> &poll);
    void allreduce(std::int32_t *x, std::size_t count, double deadline_s, const std::function<void()> &poll);

    void cancel() { cancelled_ = true; }
    Stats stats() const { return stats_; }
    std::uint64_t position() const { return position_; }

private:
    // One chunk on its way: what its packet says, kept until the result is there.
    struct Flight {
        bool open = false, resent = false;
        std::uint32_t generation = 0;
        std::size_t chunk = 0;       // of the tensor; PROLOGUE for the prologue
        std::uint16_t exponent = 0;
        std::uint16_t next_code = 0;
        std::int64_t sent_ns = 0, due_ns = 0, timeout_ns = 0;
    };
    struct Tensor;

    void run(Tensor &tensor, double deadline_s, const std::function<void()> &poll);
    void send_chunk(Tensor &tensor, std::uint64_t position, std::size_t chunk);
    void transmit(Tensor &tensor, Flight &flight, std::size_t slot);
    void handle(Tensor &tensor, int i);
    void finish(Tensor &tensor, Flight &flight, std::uint16_t next_code);
    void measure(std::int64_t rtt_ns);

    Socket socket_;
    Place place_;
    std::vector<Flight> flights_;     // by slot
    std::vector<std::int32_t> block_; // one packet's worth
    std::atomic<std::uint64_t> position_{0};  // the heartbeat's thread reads it
    bool broken_ = false;  // an all-reduce threw half-way: this stream cannot go on
    std::int64_t srtt_ns_ = 0, rttvar_ns_ = 0;
    std::atomic<bool> cancelled_{false};
    Stats stats_;
};

}  // namespace netfold
