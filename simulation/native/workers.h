// Jobs: every worker's passes over its layers, and the barriers between iterations.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "events.h"
#include "model.h"
#include "schedules.h"

namespace netfold::simulation {

class Workers final : public NodeObserver {
public:
    Workers(const Model &model, Events &events, Result &result, Schedules &schedules);
    void start();

    bool all_done() const { return open_jobs_ == 0; }
    // Of an event: a worker's computation has ended.
    void computed(std::uint32_t id) { computed(workers_[id].first, workers_[id].second); }

    bool hold(State &state, std::int32_t node, std::int32_t op) override;
    void node_done(State &state, std::int32_t node) override;

private:
    struct Held {
        State *state;
        std::int32_t node, op;
    };
    struct Worker {
        std::int32_t iteration = 1, step = 0;
        bool backward = false, busy = false, between = false;
        bool at_step = false;  // it has begun what its step asks for, and waits for what that needs
    };
    struct JobState {
        std::vector<Worker> workers;
        std::vector<std::vector<std::int32_t>> gates;    // [iteration][worker * layers + layer]: tensors yet to come
        std::vector<std::vector<std::int32_t>> closed;   // [iteration][worker]: tensors yet to come
        std::vector<std::vector<std::int32_t>> errands;  // [iteration][worker]: of those between the passes
        std::vector<std::uint8_t> is_errand;             // [tensor of the job]
        std::vector<std::uint8_t> held_by_servers;       // [tensor of the job]: its iteration ends at servers
        std::vector<std::vector<std::int32_t>> needs;    // [iteration][worker * steps + step]: tensors yet to come
        std::vector<std::int32_t> needed_at;             // [tensor of the job]: the step that waits for it; -1: none
        std::vector<std::int32_t> tensors_of_layer;
        std::int32_t queues = 0;  // of a worker: channels, then lanes
        // [iteration]: whom an iteration's end at servers, or at workers, still waits for.
        std::vector<std::int64_t> servers_left, workers_left;
        std::vector<Held> held;
        bool holding = false, done = false;
        std::int32_t begun = 1;                     // the iteration that a barrier lets workers begin
        std::vector<std::deque<State *>> channels;  // [worker * queues + queue]: what it is at, and what comes after
        std::vector<std::int32_t> asked;            // [worker]: tensors so far
    };

    void start_job(std::int32_t job);
    void open(std::int32_t job);
    void close(std::int32_t job);
    void served(std::int32_t job, std::int32_t iteration);
    void forward(std::int32_t job, std::int32_t worker);
    void computed(std::int32_t job, std::int32_t worker);
    void backward_step(std::int32_t job, std::int32_t worker);
    bool come_to(std::int32_t job, std::int32_t worker, std::int32_t step);
    void begin_backward(std::int32_t job, std::int32_t worker);
    void begin(State &state, std::int32_t worker);
    void next(State &state, std::int32_t worker);
    void gate(State &state, std::int32_t worker);

    const Model &model_;
    Events &events_;
    Result &result_;
    Schedules &schedules_;
    std::vector<JobState> job_;
    std::vector<std::pair<std::int32_t, std::int32_t>> workers_;  // of events: (job, worker)
    std::vector<std::int32_t> first_worker_;                      // by job
    std::int32_t open_jobs_ = 0;
};

}  // namespace netfold::simulation
