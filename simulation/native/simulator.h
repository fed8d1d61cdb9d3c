// Executes schedules in virtual time over a tree of full-duplex links.
#pragma once

#include <cstdint>
#include <vector>

#include "events.h"
#include "links.h"
#include "model.h"
#include "schedules.h"
#include "workers.h"

namespace netfold::simulation {

class Simulator {
public:
    explicit Simulator(Model model);
    Simulator(const Simulator &) = delete;
    Simulator &operator=(const Simulator &) = delete;

    // Runs at most this many events; returns true when all is done, or no event is left.
    bool run(std::uint64_t events);
    const Result &result() const { return result_; }
    // The operations that wait forever, if the events ran out with something undone.
    const std::vector<Stuck> &stuck() const { return stuck_; }

private:
    void play(const Event &event);

    Model model_;
    Result result_;
    Events events_;
    Links links_;
    Schedules schedules_;
    Workers workers_;
    std::vector<Stuck> stuck_;
};

}  // namespace netfold::simulation
