// State of a tensor's schedule in one iteration.
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"

namespace netfold::simulation {

struct State {
    static constexpr int DISTANCE_BITS = 16, OP_BITS = 24;

    std::int32_t iteration = 0, tensor = 0, job = 0;
    std::int32_t channel = 0;  // of its workers
    const Program *program = nullptr;
    std::vector<std::int32_t> at;        // next operation by node
    std::vector<std::uint8_t> started;   // by node: 1 when it may run, 2 while it executes operations
    std::vector<std::uint32_t> unsent;   // by node: its messages that are not yet handed over to the network
    std::vector<std::uint16_t> missing;  // by operation
    std::vector<Time> end;               // by operation: last bit of a switch's stream
    std::int32_t unfinished = 0, unfinished_servers = 0;
    std::vector<std::uint32_t> unrequested;  // messages to workers that have not begun the tensor

    // Whether a node has requested its messages: a worker does when it begins the tensor, other hosts at once. A
    // strategy's own messages are requested early.
    bool is_requested(std::int32_t node) const {
        return started[node] != 0 || node >= program->workers || !program->piece_bytes.empty();
    }

    // The sort key of an event caused by a node's operation.
    std::uint64_t tie(std::int32_t node, std::int32_t op, std::int32_t distance) const {
        return (static_cast<std::uint64_t>(tensor) << (DISTANCE_BITS + OP_BITS))
               | (static_cast<std::uint64_t>(op - program->begin[node]) << DISTANCE_BITS)
               | static_cast<std::uint64_t>(distance);
    }
};

}  // namespace netfold::simulation
