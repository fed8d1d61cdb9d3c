// Plays schedules in virtual time over a tree of full-duplex links. Knows nothing of Python.
//
// Time is in picoseconds: whole numbers, so that sums do not depend on their order, and fine enough that the 5 ns of a
// 64-byte message at 100 Gbit/s are not rounded away; 63 bits are 106 days.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace netfold::simulation {

using Time = std::int64_t;

// One direction of a cable.
struct Link {
    double ps_per_byte;
    Time latency;
};

// A host or a switch of the tree; hosts of several jobs may share links. -1 for no parent.
struct Node {
    std::int32_t parent, up, down;
    bool is_switch;
};

enum class Kind : std::uint8_t { send, receive, multicast, compute };

// One operation of one node. `target` and `target_op` say who receives, and with which of its operations; of computing,
// `target` says how long (Program::durations).
struct Op {
    Kind kind;
    bool aggregate;          // a receive that sums in the fabric
    std::uint16_t need;      // messages a receive waits for
    std::int32_t piece;
    std::int32_t target, target_op;
    std::int32_t peers, peer_count;  // of a multicast, into Program::peers
    std::int32_t source;     // of a switch's send: the receive whose stream goes on
    std::int32_t distance;   // of the target, as the sender counts: the same for nodes that do the same
};

struct Peer {
    std::int32_t target, target_op, distance;
};

// A schedule with its messages matched. Nodes are numbered from 0, workers first.
struct Program {
    std::int32_t pieces;
    std::int32_t workers;
    std::vector<std::int32_t> nodes;  // in the tree
    std::vector<std::uint8_t> holds;  // a server: waits at the barrier, if there is one
    std::vector<std::int32_t> begin;  // operations of node i: begin[i] .. begin[i + 1]
    std::vector<Op> ops;
    std::vector<Peer> peers;
    std::vector<std::uint64_t> piece_bytes;  // where pieces are not equal parts of the tensor
    std::vector<Time> durations;
};

struct Tensor {
    std::int32_t job, program;
    std::int64_t elements;
    std::int32_t element_bytes;
    std::int32_t layer;  // whose forward pass needs it
    std::int32_t order;  // in a server's distribution
};

enum class Order : std::uint8_t { round_robin, block, random, priority };

struct Job {
    std::int32_t workers;
    std::int32_t iterations;
    bool servers;    // iterations begin with a distribution, and end at the server
    bool barrier;
    bool pipelined;  // the forward pass of a layer waits for its own tensors only
    std::int32_t channels;  // tensors that a worker is at, each in a channel, dealt out in turns; 0 for any number
    Order order;
    std::uint64_t seed;
    std::int32_t forward_steps, backward_steps;
    std::int32_t rows;                  // of the durations: row (iteration * workers + worker) mod rows
    std::vector<Time> forward, backward;
    std::vector<std::vector<std::int32_t>> released;  // tensors by backward step
    std::vector<std::int32_t> errands;  // tensors between the passes: the backward pass waits for them
};

struct Settings {
    Time overhead = 0;  // of a host per message
    bool store_and_forward = false;    // switches on a unicast's or multicast's way
    bool store_and_aggregate = false;  // switches that sum
    std::uint64_t turn_bytes = 0;      // of the parts in which messages between hosts go; 0: whole
};

struct Result {
    std::uint64_t events = 0;
    std::uint64_t messages = 0;
    std::vector<std::uint64_t> link_bytes;
    std::vector<Time> link_busy;
    std::vector<std::vector<Time>> iteration_end;           // [job][iteration]
    std::vector<std::vector<std::vector<Time>>> reduced;    // [job][iteration][tensor of the job]: at all servers
    std::vector<std::vector<std::vector<Time>>> delivered;  // likewise: at all workers
    std::vector<std::vector<Time>> forward_end, backward_end;  // [job][iteration * workers + worker]
};

// An operation that waits for ever.
struct Stuck {
    std::int32_t job, tensor, node, op;
};

class Kernel {
public:
    Kernel(std::vector<Link> links, std::vector<Node> nodes, std::vector<std::uint64_t> pool_bytes,
           std::vector<Program> programs, std::vector<Tensor> tensors, std::vector<Job> jobs, Settings settings);
    ~Kernel();
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;

    // Runs at most so many events; true when all is done, or nothing can happen any more.
    bool run(std::uint64_t events);
    const Result &result() const { return result_; }
    // Who waits for ever, if the events ran out with something undone.
    const std::vector<Stuck> &stuck() const { return stuck_; }

private:
    struct State;
    struct Message;
    struct Event {
        Time time;
        std::uint64_t tie;
        std::uint32_t id, type;
    };
    struct Waiting {
        std::int32_t priority;
        std::uint64_t sequence;
        std::uint32_t message;
        Time end;
    };
    struct LinkState {
        Time free = 0;
        bool woken = false;
        std::vector<Waiting> waiting;
        std::deque<std::int32_t> turns;  // receivers that wait for their turn
        std::map<std::int32_t, std::deque<std::uint32_t>> streams;  // by receiver, a worker's together: messages, one after the other
    };
    struct Held {
        State *state;
        std::int32_t node, op;
    };
    struct Worker {
        std::int32_t iteration = 1, step = 0;
        bool backward = false, busy = false, between = false;
    };
    struct Work {
        State *state;
        std::int32_t node;
    };
    struct JobState;
    struct Request {
        State *state;
        std::int32_t op;
    };
    struct Pool {
        std::uint64_t size = 0, used = 0;
        std::deque<Request> asked;
    };

    void push(Time time, std::uint32_t type, std::uint64_t tie, std::uint32_t id);
    std::uint64_t piece_bytes(const Tensor &tensor, std::int32_t piece) const;
    State &state(std::int32_t iteration, std::int32_t tensor);
    void start_job(std::int32_t job);
    void advance(State &state, std::int32_t node);
    bool go_on(State &state, std::int32_t node);
    void finished(State &state, std::int32_t node);
    void served(std::int32_t job, std::int32_t iteration);
    std::uint64_t tie_of(const State &state, std::int32_t node, std::int32_t op, std::int32_t distance) const;
    void emit(State &state, std::int32_t node, std::int32_t op);
    void send(std::uint32_t message, Time end);
    void depart(std::uint32_t message, std::int32_t link, std::int32_t next, Time end);
    bool takes_turns(const Message &message) const;
    void queue(std::uint32_t message, std::int32_t link);
    void turn(std::int32_t link);
    void transmit(std::uint32_t message, std::int32_t link, std::int32_t next, Time end);
    void replicate(std::uint32_t message);
    void arrive(std::uint32_t message);
    void deliver(State &state, std::int32_t node, std::int32_t op, Time end);
    void wake(std::int32_t link);
    void grant(std::int32_t pool);
    void release(std::int32_t pool, std::uint64_t bytes);
    void close(std::int32_t job);
    void open(std::int32_t job);
    void forward(std::int32_t job, std::int32_t worker);
    void backward_step(std::int32_t job, std::int32_t worker);
    void begin_backward(std::int32_t job, std::int32_t worker);
    void occupy(State &state, std::int32_t node, Time duration, std::uint64_t tie);
    void computed(std::int32_t job, std::int32_t worker);
    void begin(State &state, std::int32_t worker);
    void start(State &state, std::int32_t worker);
    void next(State &state, std::int32_t worker);
    void gate(State &state, std::int32_t worker);
    std::int32_t toward(std::int32_t from, std::int32_t to) const;
    std::uint32_t message();

    std::vector<Link> links_;
    std::vector<Node> nodes_;
    std::vector<Program> programs_;
    std::vector<Tensor> tensors_;
    std::vector<Job> jobs_;
    Settings settings_;
    std::vector<std::int32_t> depth_;
    std::vector<LinkState> link_;
    std::vector<Pool> pools_;
    std::vector<std::unique_ptr<JobState>> job_;
    std::vector<std::int32_t> index_in_job_;
    std::vector<std::pair<std::int32_t, std::int32_t>> workers_;  // of events: (job, worker)
    std::vector<std::int32_t> first_worker_;
    std::vector<Event> heap_;
    std::vector<Message> messages_;
    std::vector<std::uint32_t> spare_;
    std::vector<std::pair<std::int32_t, std::uint64_t>> releases_;
    std::vector<std::uint32_t> spare_releases_;
    std::vector<Time> occupied_;  // by node of the tree: until when its processor works
    std::vector<Work> works_;
    std::vector<std::uint32_t> spare_works_;
    std::map<std::pair<const State *, std::int32_t>, std::vector<std::uint32_t>> ungranted_;
    Time now_ = 0;
    bool instant_ = false;
    std::uint64_t sequence_ = 0;
    std::int32_t open_jobs_ = 0;
    Result result_;
    std::vector<Stuck> stuck_;
};

}  // namespace netfold::simulation
