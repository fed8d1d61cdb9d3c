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

    // Whether it is one of the messages between hosts that share their links in turns.
    bool takes_turns(const Message &message) const;
    // Whether its receiver has requested it: a worker does when it begins the tensor, and a large message leaves then.
    // Gloo's and MPI's do (the rendezvous protocol). A strategy's own messages are requested early.
    bool is_requested(const Message &message) const;
    // The receiver of a message that is here has requested it.
    void requested(std::uint32_t id);
    // The next message that has been handed over to the network: its state, and the node that sent it. Null if there is
    // none.
    State *take_handed_over(std::int32_t &node);

    // A link carries something besides messages.
    void occupy(std::int32_t link, std::uint64_t bytes);
    // The same, of all links on the way of a piece's sum from the switch where hosts' parts meet.
    void occupy_results(const Program &program, std::int32_t piece, std::uint64_t bytes);

    // Handlers of events.
    void wake(std::int32_t link);
    void arrive(std::uint32_t id);
    void acknowledged(std::uint32_t id);
    // A message is at its target, which acknowledges it.
    void acknowledge(std::uint32_t id);
    // A message is at its target, and its number may be used again.
    void release(std::uint32_t id) { spare_.push_back(id); }

private:
    // A message that its sender's connection has no room for yet.
    struct Unsent {
        State *state;
        std::int32_t source, target, distance;
        std::uint32_t message;
        std::uint64_t bytes;
        std::uint64_t end;  // of it, in bytes of its connection
        bool admitted;      // requested, and among those that may leave; it may have no bytes
    };
    // From a host to another one: bytes so far that were handed over, are under way, and have been acknowledged.
    struct Connection {
        std::uint64_t queued = 0, under_way = 0, acknowledged = 0;
    };
    struct LinkState {
        Time free = 0;
        bool woken = false;
        std::vector<Waiting> waiting;
        std::deque<std::int32_t> turns;  // receivers that wait for their turn
        // By receiver: messages that may leave; and messages that wait for that, by line.
        std::map<std::int32_t, std::deque<std::uint32_t>> streams;
        std::map<std::int32_t, std::deque<Unsent>> lines;
        std::vector<std::int32_t> requested;  // lines whose requests are on their way
        std::map<std::pair<std::int32_t, std::int32_t>, Connection> connections;  // by job and distance of the receiver
    };

    std::uint32_t message();
    void depart(std::uint32_t id, std::int32_t link, std::int32_t next, Time end);
    std::int32_t cable(const Message &message, const Node &node) const;
    std::int32_t line(const Message &message) const;
    Time way_back(const Message &message) const;
    void hand_over(std::int32_t link, std::int32_t line);
    void wake_at(std::int32_t link, Time at);
    void nudge(std::int32_t link, Time at);
    bool is_chunk(const Message &message) const;
    bool to_fabric(const Message &message) const;
    Window &window(const Message &message);
    void queue(std::uint32_t id, std::int32_t link);
    bool turn(std::int32_t link);
    Connection &connection(const Message &message);
    std::int32_t uplink(const Message &message) const;
    bool is_lost(const Message &message) const;
    bool has_room(const Message &message, std::uint64_t bytes);
    void transmit(std::uint32_t id, std::int32_t link, std::int32_t next, Time end);
    void request_more(const Message &message);
    // Calls `each` with the links from one node of the tree to another.
    template <typename Each>
    void on_the_way(std::int32_t from, std::int32_t to, const Each &each) const {
        for (std::int32_t at = from; at != to;) {
            const std::int32_t next = model_.toward(at, to);
            each(next == model_.nodes[at].parent ? model_.nodes[at].up : model_.nodes[next].down);
            at = next;
        }
    }

    const Model &model_;
    Events &events_;
    Result &result_;
    std::vector<LinkState> link_;
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Window>
        windows_;  // by job, node of the tree, stream
    std::vector<Message> messages_;
    std::vector<std::uint32_t> spare_;
    std::deque<std::pair<State *, std::int32_t>> handed_over_;
    std::uint64_t sequence_ = 0;
};

}  // namespace netfold::simulation
