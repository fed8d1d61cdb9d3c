// Messages on their way over links and switches.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <tuple>
#include <vector>

#include "events.h"
#include "model.h"
#include "state.h"
#include "window.h"

namespace netfold::simulation {

struct Message {
    State *state = nullptr;
    std::int32_t op = 0, source = 0, target = 0, target_op = 0,
                 distance = 0;      // target -1: a multicast not yet replicated
    std::int32_t at = 0, from = 0;  // node of the tree
    std::uint64_t bytes = 0;
    Time end = 0;
    bool first = false;     // not yet on a link
    bool more = false;      // a part; other parts of the same message follow
    bool windowed = false;  // to be acknowledged
    double arrives = 1;     // probability that none of the links so far has lost its last frame
};

// A message that waits for its link, if layers have priorities.
struct Waiting {
    std::int32_t priority;
    std::uint64_t sequence;
    std::uint32_t message;
    Time end;
};

class Links {
public:
    Links(const Model &model, Events &events, Result &result);

    // Creates a message at a node without sending it; returns its number.
    std::uint32_t add(const Message &message);
    const Message &operator[](std::uint32_t id) const { return messages_[id]; }
    // Sends it from its current node to the next link.
    void send(std::uint32_t id, Time end);
    // At a switch: makes a copy for every host that is attached, and one for every neighbour on the way to others.
    void replicate(std::uint32_t id);

    // Handlers of events.
    void wake(std::int32_t link);
    void arrive(std::uint32_t id);
    void acknowledged(std::uint32_t id);
    // A message is at its target, which acknowledges it.
    void acknowledge(std::uint32_t id);
    // A message is at its target, and its number may be used again.
    void release(std::uint32_t id) { spare_.push_back(id); }

private:
    struct LinkState {
        Time free = 0;
        bool woken = false;
        std::vector<Waiting> waiting;
        std::deque<std::int32_t> turns;  // receivers that wait for their turn
        // By receiver, a worker's together: queues of messages.
        std::map<std::int32_t, std::deque<std::uint32_t>> streams;
        std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t>
            under_way;  // by job and distance of the receiver
    };

    std::uint32_t message();
    void depart(std::uint32_t id, std::int32_t link, std::int32_t next, Time end);
    std::int32_t cable(const Message &message, const Node &node) const;
    bool takes_turns(const Message &message) const;
    bool to_fabric(const Message &message) const;
    Window &window(const Message &message);
    void queue(std::uint32_t id, std::int32_t link);
    bool turn(std::int32_t link);
    std::uint64_t &under_way(const Message &message);
    bool is_lost(const Message &message) const;
    bool has_room(const Message &message, std::uint64_t bytes);
    void transmit(std::uint32_t id, std::int32_t link, std::int32_t next, Time end);

    const Model &model_;
    Events &events_;
    Result &result_;
    std::vector<LinkState> link_;
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Window>
        windows_;  // by job, node of the tree, stream
    std::vector<Message> messages_;
    std::vector<std::uint32_t> spare_;
    std::uint64_t sequence_ = 0;
};

}  // namespace netfold::simulation
