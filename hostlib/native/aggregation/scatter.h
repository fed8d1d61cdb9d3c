// One rank's endpoint of reduce-scatters: what it sends of the others' shards, and what it receives of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/collector.h"
#include "aggregation/engine.h"
#include "aggregation/lane.h"

namespace netfold {

// A slot pool for each rank, the owner of its shard: a lane to every other rank's, and a collector for this rank's own.
// Tensors are summed in the order in which they are submitted, which must be the same on every rank; several may be in
// progress at once. Source: docs/protocol.md, "Shards and their owners".
class Scatter {
public:
    // Throws std::system_error if a port cannot be bound, std::invalid_argument for an impossible rank.
    Scatter(const std::string &address, int rank, int world_size);
    ~Scatter();

    std::string address() const { return collector_->address(); }
    std::size_t ranks() const { return lanes_.size(); }
    std::vector<std::uint16_t> ports() const;  // by pool

    // As Engine::configure. ends: by rank, where its port of each pool is.
    std::uint64_t configure(const Place &place, const std::vector<std::vector<End>> &ends);
    std::optional<std::uint16_t> echo(std::size_t pool, const End &fabric, const std::vector<std::uint8_t> &question,
                                      std::int64_t timeout_ns);

    // Sums `x`, a shard of `count` values for each rank, over the ranks; `sums` (float32, or int32) gets what the
    // others have summed of this rank's shard. Both must stay where they are until the ticket is done. Throws as
    // Engine::submit.
    std::uint64_t submit(DType dtype, void *x, std::size_t count, bool average, void *sums);
    // As Engine::wait.
    bool wait(std::uint64_t ticket, double seconds);
    void halt();
    double silent() const;
    void cancel();
    Stats stats() const;
    std::uint64_t position() const;

private:
    int rank_, world_size_;
    std::unique_ptr<Collector> collector_;
    std::vector<std::unique_ptr<Lane>> lanes_;  // by rank; none for this one
    int elements_ = 0;
    std::size_t slots_ = 0;  // of each pool
    mutable std::mutex mutex_;
    std::condition_variable done_;
    std::map<std::uint64_t, std::shared_ptr<Operation>> waiting_;
    std::uint64_t tickets_ = 0;
    bool halted_ = true, cancelled_ = false;
};

}  // namespace netfold
