// The input of a simulation, as in the tables of simulation/simulator/compile.py, and its results. Independent of
// Python. Time is in picoseconds: integers, so that sums do not depend on their order, and fine enough that the 5 ns of
// a 64-byte message at 100 Gbit/s are exact; 63 bits are 106 days.
#pragma once

#include <cstdint>
#include <vector>

namespace netfold::simulation {

using Time = std::int64_t;

// One direction of a cable.
struct Link {
    double ps_per_byte;
    Time latency;
    double loss;  // probability that it loses a frame
};

// A host or a switch of the tree; hosts of several jobs may share links. -1 for no parent. Its cables to the parent are
// equal: number i has the links up + 2 i and down + 2 i.
struct Node {
    std::int32_t parent, up, down;
    bool is_switch;
    std::int32_t cables;
};

enum class Kind : std::uint8_t { send, receive, multicast, compute };

// One operation of one node. `target` and `target_op` are the receiver and its matching operation; of computing,
// `target` is an index into Program::durations.
struct Op {
    Kind kind;
    bool aggregate;      // a receive that sums in the fabric
    std::uint16_t need;  // messages that a receive waits for
    std::int32_t piece;
    std::int32_t target, target_op;
    std::int32_t peers, peer_count;  // of a multicast, into Program::peers
    std::int32_t source;             // of a switch's send: the receive whose stream it continues
    std::int32_t distance;           // of the target, as the sender counts: equal for nodes that do the same
};

struct Peer {
    std::int32_t target, target_op, distance;
};

// A schedule with its messages matched. Nodes are numbered from 0, workers first.
// An operation of a node.
struct Carrying {
    std::int32_t node, op;
};

struct Program {
    std::int32_t pieces;
    std::int32_t workers;
    std::vector<std::int32_t> nodes;  // in the tree
    std::vector<std::uint8_t> holds;  // a server: waits at the barrier, if there is one
    std::vector<std::int32_t> begin;  // operations of node i: begin[i] .. begin[i + 1]
    std::vector<Op> ops;
    std::vector<Peer> peers;
    std::vector<std::int32_t> summed_from;    // by piece: how many hosts send it to a sum in the fabric
    std::vector<std::vector<Carrying>> sums;  // by piece: the operations that carry its sum in the fabric further
    std::vector<std::int32_t> chunks_from;    // by operation: the host whose chunks a switch multicasts; -1 for none
    std::vector<std::uint64_t> piece_bytes;   // if pieces are not equal parts of the tensor
    std::vector<Time> durations;
    bool servers_stream;  // they pass on frame by frame what they get, as switches do
};

struct Tensor {
    std::int32_t job, program;
    std::int64_t elements;
    std::int32_t element_bytes;
    std::int32_t layer;  // the layer whose forward pass needs it
    std::int32_t order;  // in a server's distribution
    std::int32_t first;  // of the parts of one tensor; itself if it is whole
    std::int32_t lane;   // a worker does those of one lane one by one; 0: the job's channels hold for it
};

enum class Order : std::uint8_t { round_robin, block, random, priority };

struct Job {
    std::int32_t workers;
    std::int32_t iterations;
    bool servers;  // iterations begin with a distribution, and end at the server
    bool barrier;
    bool pipelined;         // the forward pass of a layer waits for its own tensors only
    std::int32_t channels;  // tensors in progress at a worker, each in a channel, assigned in turn; 0 for unlimited
    Order order;
    std::uint64_t seed;
    std::int32_t forward_steps, backward_steps;
    std::int32_t rows;  // of the durations: row (iteration * workers + worker) mod rows
    std::vector<Time> forward, backward;
    std::vector<std::vector<std::int32_t>> released;  // tensors by backward step
    std::vector<std::int32_t> errands;                // tensors between the passes: the backward pass waits for them
    // Tensors by step, of forward and then of backward steps: those that a worker begins when it comes to the step, and
    // those that it has before it computes the step.
    std::vector<std::vector<std::int32_t>> asked, awaited;
    std::uint64_t slots;           // that a rank's frames to the fabric use in turn; 0 for any number
    std::uint64_t frame_bytes;     // values in such a frame
    std::vector<Time> round_trip;  // by node of the tree: from a frame to its result
    double request_share;          // of chunks' bytes: what their receivers send to the source; 0: nothing
    bool padded;                   // the last frame of a piece, to frame_bytes
    std::uint64_t opened;          // of a sum's chunks: the first ones, whose scales prologues agree on
    std::uint64_t opened_by_each;  // of them, by one prologue; 0: there are none
};

struct Settings {
    Time overhead = 0;                 // of a host per message
    bool store_and_forward = false;    // switches on a unicast's or multicast's way
    bool store_and_aggregate = false;  // switches that sum
    std::uint64_t turn_bytes = 0;      // size of the parts of messages between hosts; 0: whole messages
    std::uint64_t window_bytes = 0;    // of a stream of such parts: under way at a time; 0: any number
    Time timeout = 0;                  // after which a stream sends its last frame again, if that is lost
};

struct Result {
    std::uint64_t events = 0;
    std::uint64_t messages = 0;
    std::vector<std::uint64_t> link_bytes;
    std::vector<Time> link_busy;
    std::vector<std::vector<Time>> iteration_end;              // [job][iteration]
    std::vector<std::vector<std::vector<Time>>> reduced;       // [job][iteration][tensor of the job]: at all servers
    std::vector<std::vector<std::vector<Time>>> delivered;     // likewise: at all workers
    std::vector<std::vector<Time>> forward_end, backward_end;  // [job][iteration * workers + worker]
};

// An operation that waits forever.
struct Stuck {
    std::int32_t job, tensor, node, op;
};

// The whole input, and tables derived from it.
struct Model {
    std::vector<Link> links;
    std::vector<Node> nodes;
    std::vector<Program> programs;
    std::vector<Tensor> tensors;
    std::vector<Job> jobs;
    Settings settings;

    std::vector<std::int32_t> depth;                        // by node
    std::vector<std::vector<std::int32_t>> tensors_of_job;  // by job
    std::vector<std::int32_t> index_in_job;                 // by tensor
    std::vector<std::int64_t> elements_with_parts;          // by tensor, if it is the first of its parts

    Model(std::vector<Link> the_links, std::vector<Node> the_nodes, std::vector<Program> the_programs,
          std::vector<Tensor> the_tensors, std::vector<Job> the_jobs, Settings the_settings);

    std::uint64_t piece_bytes(const Tensor &tensor, std::int32_t piece) const;
    // Whether an operation of a program's node hands a sum in the fabric what a host has for it.
    bool opens(const Program &program, std::int32_t node, const Op &op) const;
    // Program::sums.
    std::vector<std::vector<Carrying>> sums_of(const Program &program) const;
    // Program::chunks_from.
    std::vector<std::int32_t> sources_of_chunks(const Program &program) const;
    // The neighbour of a node on the path to another one.
    std::int32_t toward(std::int32_t from, std::int32_t to) const;
};

}  // namespace netfold::simulation
