// One rank's endpoint of the slot protocol: sums tensors with the other ranks' through the switch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "aggregation/lane.h"
#include "block_float/block_float.h"

namespace netfold {

// This rank's place in a job, as assigned by the controller. One slot pool per lane.
struct Place {
    End fabric;
    std::uint16_t job = 0, rank = 0;
    std::uint32_t epoch = 0;
    int world_size = 0, elements = 0, window = 0;
    std::shared_ptr<const CheckWords> check;
    std::vector<Pool> pools;
};

// No result arrived for the whole deadline while something was outstanding.
struct Stalled : std::runtime_error {
    Stalled(std::uint64_t position, double silent_s);
};

struct Cancelled : std::runtime_error {
    Cancelled() : std::runtime_error("cancelled") {}
};

// The sum of the ranks' int32 tensors might overflow: nothing was summed.
struct SumOverflow : std::overflow_error {
    using std::overflow_error::overflow_error;
};

// The ranks sum tensors of different lengths or types: nothing was summed, and the streams are out of step.
struct TensorsDiffer : std::runtime_error {
    TensorsDiffer() : std::runtime_error("the ranks sum tensors of different lengths or types") {}
};

// An operation that a halted engine left unfinished.
struct Remainder {
    std::uint64_t ticket;
    std::vector<std::uint8_t> done;  // by chunk of the tensor: the result is in place
};

// Several lanes (a socket, a slot pool and a thread each) side by side. Tensors are summed in the order in which they
// are submitted, which must be the same on every rank; several may be in progress at once.
class Engine {
public:
    // One lane per port; 0 takes any. Throws std::system_error if one cannot be bound.
    Engine(const std::string &address, const std::vector<std::uint16_t> &ports);
    ~Engine();

    std::string address() const { return lanes_.front()->address(); }
    std::vector<std::uint16_t> ports() const;

    // Starts the streams at position 0 and drops unfinished operations: every ticket below the one that is returned.
    // Throws std::invalid_argument for an impossible place, std::logic_error while an operation is in progress.
    std::uint64_t configure(const Place &place);

    // Sends a packet by a lane and waits until the switch has sent it back; returns the rank that it then has, or none.
    // Throws std::logic_error while an operation is in progress, std::invalid_argument if there is no such lane.
    std::optional<std::uint16_t> echo(std::size_t lane, const End &fabric, const std::vector<std::uint8_t> &question,
                                      std::int64_t timeout_ns);

    // Sums over the ranks in place; `x` must stay where it is until the ticket is done. Throws std::logic_error if
    // halted or not configured.
    std::uint64_t submit(DType dtype, void *x, std::size_t count, bool average);

    // Waits up to a timeout; returns whether it is done. Tickets that are done are dropped. Throws SumOverflow,
    // Cancelled, TensorsDiffer: then halt() must follow, after which the tensor may be dropped.
    bool wait(std::uint64_t ticket, double seconds);

    // Stops sending and receiving: only restore(), queries and configure() may follow.
    void halt();
    bool halted() const;

    // After halt(): the last result of every slot, lane by lane, for the ranks that lack it. positions: -1 for none;
    // words: per slot one word of codes (exponent << 16 | next exponent), then the elements as received.
    std::size_t slots() const;
    void retained(std::int64_t *positions, std::uint32_t *words) const;
    // The counterpart: takes results that this rank still waits for.
    void restore(const std::int64_t *positions, const std::uint32_t *words);
    std::vector<Remainder> unfinished() const;

    // How long something has been outstanding without a result, in seconds; 0 if nothing is.
    double silent() const;

    void cancel();
    Stats stats() const;
    std::uint64_t position() const;
    const Place &place() const { return place_; }

private:
    struct Waiting {
        std::shared_ptr<Operation> operation;
        std::size_t chunks = 0;
    };

    void require_halted() const;

    std::vector<std::unique_ptr<Lane>> lanes_;
    Place place_;
    mutable std::mutex mutex_;
    std::condition_variable done_;
    std::map<std::uint64_t, Waiting> waiting_;
    std::uint64_t tickets_ = 0;
    bool halted_ = false, cancelled_ = false;
};

}  // namespace netfold
