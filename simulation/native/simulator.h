// Plays schedules in virtual time over a tree of full-duplex links.
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

    // Runs at most so many events; true when all is done, or nothing can happen any more.
    bool run(std::uint64_t events);
    const Result &result() const { return result_; }
    // Who waits for ever, if the events ran out with something undone.
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
