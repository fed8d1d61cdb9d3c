// Executes every node's operations for every tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "events.h"
#include "links.h"
#include "model.h"
#include "state.h"

namespace netfold::simulation {

// The interface that decides when nodes may continue, and what follows.
class NodeObserver {
public:
    // Whether a node's message to a worker is deferred, to be emitted later.
    virtual bool hold(State &state, std::int32_t node, std::int32_t op) = 0;
    // A node has finished a tensor.
    virtual void node_done(State &state, std::int32_t node) = 0;

protected:
    ~NodeObserver() = default;
};

class Schedules {
public:
    Schedules(const Model &model, Events &events, Links &links);
    void observe(NodeObserver &observer) { observer_ = &observer; }

    State &state(std::int32_t iteration, std::int32_t tensor);
    // Lets a worker begin a tensor.
    void start(State &state, std::int32_t worker);
    void emit(State &state, std::int32_t node, std::int32_t op);
    // Whether everything is instantaneous, as before the start.
    bool instant() const { return instant_; }
    void set_instant(bool instant) { instant_ = instant; }

    // Handlers of events.
    void deliver(State &state, std::int32_t node, std::int32_t op, Time end);
    void opened(std::uint32_t message);
    void worked(std::uint32_t id);
    // Of what links say: a node's message has been handed over to the network.
    void handed_over(State &state, std::int32_t node);

    // The operations that wait forever, if no event is left.
    std::vector<Stuck> stuck() const;

private:
    struct Work {
        State *state;
        std::int32_t node;
    };

    void advance(State &state, std::int32_t node);
    bool go_on(State &state, std::int32_t node);
    void finished(State &state, std::int32_t node);
    void request(State &state, std::int32_t worker);
    void occupy(State &state, std::int32_t node, Time duration, std::uint64_t tie);
    std::uint64_t message_bytes(const State &state, std::int32_t node, const Op &op) const;
    std::uint64_t prologue_bytes(std::int32_t tensor, std::int32_t piece) const;
    void open(State &state, std::int32_t op, std::uint32_t message);

    const Model &model_;
    Events &events_;
    Links &links_;
    NodeObserver *observer_ = nullptr;
    bool instant_ = false;
    std::vector<std::vector<std::vector<std::unique_ptr<State>>>> states_;  // [job][iteration][tensor of the job]
    std::vector<Time> occupied_;  // by node of the tree: when its processor becomes free
    std::vector<Work> works_;
    std::vector<std::uint32_t> spare_works_;
    struct Opening {
        std::int32_t hosts = 0;              // that have sent the prologue
        Time since = -1;                     // when the last of them did
        std::vector<std::uint32_t> waiting;  // for its result
    };
    // By iteration, (first part of a) tensor, and piece: the prologue.
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Opening> opening_;
};

}  // namespace netfold::simulation
