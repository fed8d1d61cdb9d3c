#include "kernel.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace netfold::simulation {

namespace {

// In this order at one instant; ties within a type are broken by what a node sees (tensor, operation, distance of the
// peer), never by a node's own number: so nodes that do the same stay in step.
enum Type : std::uint32_t { computed_event, delivered_event, released_event, woken_event, arrived_event, worked_event };

std::uint64_t mix(std::uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

constexpr std::int32_t IN_ORDER = -1;  // instead of a receiver: a worker sends to them one after the other
constexpr int DISTANCE_BITS = 16, OP_BITS = 24;

}  // namespace

// A tensor's schedule at work in one iteration.
struct Kernel::State {
    std::int32_t iteration, tensor, job;
    const Program *program;
    std::vector<std::int32_t> at;           // next operation by node
    std::vector<std::uint8_t> started;      // by node: 1 when it may, 2 while it is at its operations
    std::vector<std::uint16_t> missing;     // by operation
    std::vector<Time> end;                  // by operation: last bit of a switch's stream
    std::vector<std::uint8_t> granted;      // by operation: 1 asked, 2 granted
    std::int32_t unfinished, unfinished_servers, unfinished_workers;
};

struct Kernel::Message {
    State *state;
    std::int32_t op, source, target, target_op, distance;  // target -1: a multicast still together
    std::int32_t at, from;                       // in the tree
    std::uint64_t bytes;
    Time end;
    bool first;  // not yet on a link
    bool more = false;  // a part, others of the same message follow
};

struct Kernel::JobState {
    std::vector<std::vector<std::unique_ptr<State>>> states;  // [iteration][tensor of the job]
    std::vector<std::int32_t> tensors;
    std::vector<Worker> workers;
    std::vector<std::vector<std::int32_t>> gates;  // [iteration][worker * layers + layer]: tensors yet to come
    std::vector<std::vector<std::int32_t>> closed;  // [iteration][worker]: tensors yet to come
    std::vector<std::vector<std::int32_t>> errands; // [iteration][worker]: of those between the passes, yet to come
    std::vector<std::uint8_t> is_errand;              // [tensor of the job]
    std::vector<std::uint8_t> held_by_servers;      // [tensor of the job]: its iteration ends at servers
    std::vector<std::int32_t> tensors_of_layer;
    // [iteration]: whom an iteration's end at servers, or at workers, still waits for.
    std::vector<std::int64_t> servers_left, workers_left;
    std::vector<Held> held;
    bool holding = false, done = false;
    std::int32_t begun = 1;  // the iteration that a barrier lets workers begin
    std::vector<std::deque<State *>> channels;  // [worker * channels + channel]: what it is at, and what comes after
    std::vector<std::int32_t> asked;            // [worker]: tensors so far
};

Kernel::~Kernel() = default;

Kernel::Kernel(std::vector<Link> links, std::vector<Node> nodes, std::vector<std::uint64_t> pool_bytes,
               std::vector<Program> programs, std::vector<Tensor> tensors, std::vector<Job> jobs, Settings settings)
    : links_(std::move(links)),
      nodes_(std::move(nodes)),
      programs_(std::move(programs)),
      tensors_(std::move(tensors)),
      jobs_(std::move(jobs)),
      settings_(settings) {
    depth_.resize(nodes_.size());
    for (std::size_t n = 0; n < nodes_.size(); n++)
        for (std::int32_t p = nodes_[n].parent; p >= 0; p = nodes_[p].parent) depth_[n]++;
    link_.resize(links_.size());
    occupied_.resize(nodes_.size());
    pools_.resize(nodes_.size());
    for (std::size_t n = 0; n < nodes_.size(); n++) pools_[n].size = pool_bytes[n];
    result_.link_bytes.resize(links_.size());
    result_.link_busy.resize(links_.size());
    index_in_job_.resize(tensors_.size());
    for (std::size_t j = 0; j < jobs_.size(); j++) job_.push_back(std::make_unique<JobState>());
    for (std::size_t t = 0; t < tensors_.size(); t++) {
        auto &of = job_[tensors_[t].job]->tensors;
        index_in_job_[t] = static_cast<std::int32_t>(of.size());
        of.push_back(static_cast<std::int32_t>(t));
    }
    open_jobs_ = static_cast<std::int32_t>(jobs_.size());
    for (std::size_t j = 0; j < jobs_.size(); j++) {
        first_worker_.push_back(static_cast<std::int32_t>(workers_.size()));
        for (std::int32_t w = 0; w < jobs_[j].workers; w++) workers_.emplace_back(static_cast<std::int32_t>(j), w);
    }
    for (std::size_t j = 0; j < jobs_.size(); j++) start_job(static_cast<std::int32_t>(j));
}

void Kernel::push(Time time, std::uint32_t type, std::uint64_t tie, std::uint32_t id) {
    heap_.push_back({time, (static_cast<std::uint64_t>(type) << 60) | tie, id, type});
    std::push_heap(heap_.begin(), heap_.end(), [](const Event &a, const Event &b) {
        return a.time != b.time ? a.time > b.time : a.tie > b.tie;
    });
}

bool Kernel::run(std::uint64_t events) {
    const auto later = [](const Event &a, const Event &b) {
        return a.time != b.time ? a.time > b.time : a.tie > b.tie;
    };
    for (; events > 0 && open_jobs_ > 0 && !heap_.empty(); events--) {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const Event event = heap_.back();
        heap_.pop_back();
        now_ = event.time;
        result_.events++;
        switch (event.type) {
            case computed_event:
                computed(workers_[event.id].first, workers_[event.id].second);
                break;
            case delivered_event: {
                const Message got = messages_[event.id];
                spare_.push_back(event.id);
                if (!got.more) deliver(*got.state, got.target, got.target_op, got.end);
                break;
            }
            case released_event: {
                const auto [pool, bytes] = releases_[event.id];
                spare_releases_.push_back(event.id);
                release(pool, bytes);
                break;
            }
            case woken_event:
                wake(static_cast<std::int32_t>(event.id));
                break;
            case arrived_event:
                arrive(event.id);
                break;
            case worked_event: {
                const Work done = works_[event.id];
                spare_works_.push_back(event.id);
                const bool last = ++done.state->at[done.node] == done.state->program->begin[done.node + 1];
                if (last)
                    finished(*done.state, done.node);
                else
                    advance(*done.state, done.node);
                break;
            }
        }
    }
    if (open_jobs_ == 0) return true;
    if (!heap_.empty()) return false;
    for (std::size_t j = 0; j < jobs_.size(); j++)
        for (const auto &iteration : job_[j]->states)
            for (const auto &s : iteration)
                if (s)
                    for (std::size_t n = 0; n + 1 < s->program->begin.size(); n++)
                        if (s->at[n] < s->program->begin[n + 1])
                            stuck_.push_back({static_cast<std::int32_t>(j), s->tensor, static_cast<std::int32_t>(n),
                                              s->at[n]});
    return true;
}

// ---- jobs and workers ----------------------------------------------------------------------------------------------

void Kernel::start_job(std::int32_t j) {
    const Job &job = jobs_[j];
    JobState &js = *job_[j];
    const std::size_t iterations = job.iterations + 1, tensors = js.tensors.size();
    js.states.resize(iterations);
    for (auto &of : js.states) of.resize(tensors);
    js.workers.resize(job.workers);
    js.channels.resize(static_cast<std::size_t>(job.workers) * job.channels);
    js.asked.assign(job.workers, 0);
    js.tensors_of_layer.assign(job.forward_steps, 0);
    for (const std::int32_t t : js.tensors) js.tensors_of_layer[tensors_[t].layer]++;
    js.gates.resize(iterations);
    js.closed.resize(iterations);
    js.errands.assign(iterations, std::vector<std::int32_t>(job.workers, static_cast<std::int32_t>(job.errands.size())));
    js.is_errand.assign(tensors, 0);
    for (const std::int32_t t : job.errands) js.is_errand[index_in_job_[t]] = 1;
    for (std::size_t i = 0; i < iterations; i++) {
        for (std::int32_t w = 0; w < job.workers; w++)
            js.gates[i].insert(js.gates[i].end(), js.tensors_of_layer.begin(), js.tensors_of_layer.end());
        js.closed[i].assign(job.workers, static_cast<std::int32_t>(tensors));
    }
    std::int64_t servers = 0;
    for (const std::int32_t t : js.tensors) {
        const Program &p = programs_[tensors_[t].program];
        std::int64_t holding = 0;
        for (std::size_t n = 0; n < p.nodes.size(); n++) holding += p.holds[n] && p.begin[n] < p.begin[n + 1];
        js.held_by_servers.push_back(holding > 0);
        servers += holding > 0 ? holding : job.workers;
    }
    js.servers_left.assign(iterations, servers);
    js.workers_left.assign(iterations, static_cast<std::int64_t>(tensors) * job.workers);
    result_.iteration_end.emplace_back(iterations, 0);
    result_.reduced.emplace_back(iterations, std::vector<Time>(tensors, 0));
    result_.delivered.emplace_back(iterations, std::vector<Time>(tensors, 0));
    result_.forward_end.emplace_back(iterations * job.workers, 0);
    result_.backward_end.emplace_back(iterations * job.workers, 0);
    if (job.servers) {
        // What a previous iteration would have left: everything summed, the servers about to distribute.
        instant_ = true;
        js.holding = true;
        for (const std::int32_t t : js.tensors) {
            for (std::int32_t w = 0; w < job.workers; w++) start(state(0, t), w);
        }
        instant_ = false;
        open(j);
    } else {
        for (auto &gates : js.gates[0]) gates = 0;
        for (auto &closed : js.closed[0]) closed = 0;
    }
    for (std::int32_t w = 0; w < job.workers; w++) forward(j, w);
}

// Lets the barrier open: the servers distribute.
void Kernel::open(std::int32_t j) {
    const Job &job = jobs_[j];
    JobState &js = *job_[j];
    js.holding = false;
    auto held = std::move(js.held);
    js.held.clear();
    struct Key {
        std::uint64_t major, minor;
        std::size_t index;
    };
    std::vector<Key> keys;
    for (std::size_t i = 0; i < held.size(); i++) {
        const Held &h = held[i];
        const Op &op = h.state->program->ops[h.op];
        const Tensor &tensor = tensors_[h.state->tensor];
        const auto order = static_cast<std::uint64_t>(tensor.order);
        const auto number = static_cast<std::uint64_t>(h.op);
        const auto target = static_cast<std::uint64_t>(op.kind == Kind::send ? op.target : 0);
        switch (job.order) {
            case Order::round_robin: keys.push_back({order, number, i}); break;
            case Order::block: keys.push_back({target, order << 24 | number, i}); break;
            case Order::random:
                keys.push_back({mix(job.seed ^ mix(static_cast<std::uint64_t>(h.state->iteration) << 48 |
                                                   static_cast<std::uint64_t>(h.state->tensor) << 24 | number)),
                                order << 24 | number, i});
                break;
            case Order::priority:
                keys.push_back({static_cast<std::uint64_t>(tensor.layer), order << 24 | number, i});
                break;
        }
    }
    std::sort(keys.begin(), keys.end(), [](const Key &a, const Key &b) {
        return std::pair(a.major, a.minor) != std::pair(b.major, b.minor)
                   ? std::pair(a.major, a.minor) < std::pair(b.major, b.minor)
                   : a.index < b.index;
    });
    for (const Key &key : keys) emit(*held[key.index].state, held[key.index].node, held[key.index].op);
    if (!job.barrier) return;
    js.holding = true;  // until the next one
}

void Kernel::close(std::int32_t j) {
    if (!job_[j]->done) {
        job_[j]->done = true;
        open_jobs_--;
    }
}

// Goes on with the forward pass, if it can.
void Kernel::forward(std::int32_t j, std::int32_t w) {
    const Job &job = jobs_[j];
    JobState &js = *job_[j];
    Worker &worker = js.workers[w];
    if (worker.busy || worker.backward || worker.iteration > job.iterations) return;
    if (worker.iteration > js.begun) return;
    const std::int32_t results = worker.iteration - 1;
    const bool ready = job.pipelined ? js.gates[results][w * job.forward_steps + worker.step] == 0
                                     : js.closed[results][w] == 0;
    if (!ready) return;
    worker.busy = true;
    const std::int64_t row = (static_cast<std::int64_t>(worker.iteration - 1) * job.workers + w) % job.rows;
    push(now_ + job.forward[row * job.forward_steps + worker.step], computed_event, first_worker_[j] + w,
         first_worker_[j] + w);
}

void Kernel::computed(std::int32_t j, std::int32_t w) {
    const Job &job = jobs_[j];
    Worker &worker = job_[j]->workers[w];
    const std::int32_t iteration = worker.iteration;
    if (!worker.backward) {
        worker.busy = false;
        if (++worker.step < job.forward_steps) return forward(j, w);
        result_.forward_end[j][static_cast<std::size_t>(iteration) * job.workers + w] = now_;
        worker.backward = true;
        worker.step = 0;
        worker.between = true;
        for (const std::int32_t t : job.errands) start(state(iteration, t), w);
        return begin_backward(j, w);
    }
    const std::int32_t step = worker.step++;
    const bool last = worker.step == job.backward_steps;
    if (last) {
        result_.backward_end[j][static_cast<std::size_t>(iteration) * job.workers + w] = now_;
        worker.backward = false;
        worker.step = 0;
        worker.iteration++;
    } else {
        backward_step(j, w);
    }
    for (const std::int32_t t : job.released[step]) begin(state(iteration, t), w);
    if (last) forward(j, w);
}

void Kernel::backward_step(std::int32_t j, std::int32_t w) {
    const Job &job = jobs_[j];
    const Worker &worker = job_[j]->workers[w];
    const std::int64_t row = (static_cast<std::int64_t>(worker.iteration - 1) * job.workers + w) % job.rows;
    push(now_ + job.backward[row * job.backward_steps + worker.step], computed_event, first_worker_[j] + w,
         first_worker_[j] + w);
}

// Goes over to the backward pass, if nothing between the passes is left.
void Kernel::begin_backward(std::int32_t j, std::int32_t w) {
    Worker &worker = job_[j]->workers[w];
    if (!worker.between || job_[j]->errands[worker.iteration][w] > 0) return;
    worker.between = false;
    backward_step(j, w);
}

// A tensor's gradients are there: its turn comes when the worker is through with what is before it in its channel; that of
// a strategy's own messages at once.
void Kernel::begin(State &s, std::int32_t w) {
    const std::int32_t channels = jobs_[s.job].channels;
    if (channels == 0 || !s.program->piece_bytes.empty()) return start(s, w);
    JobState &js = *job_[s.job];
    auto &channel = js.channels[w * channels + js.asked[w]++ % channels];
    channel.push_back(&s);
    if (channel.size() == 1) start(s, w);
}

void Kernel::start(State &s, std::int32_t w) {
    s.started[w] = 1;
    advance(s, w);
    if (s.at[w] == s.program->begin[w + 1] && s.program->begin[w] == s.program->begin[w + 1]) finished(s, w);
}

// A worker is through with a tensor.
void Kernel::next(State &s, std::int32_t w) {
    const std::int32_t channels = jobs_[s.job].channels;
    for (std::int32_t c = 0; c < channels; c++) {
        auto &channel = job_[s.job]->channels[w * channels + c];
        if (channel.empty() || channel.front() != &s) continue;
        channel.pop_front();
        if (!channel.empty()) start(*channel.front(), w);
        return;
    }
}

// A worker has a tensor's result.
void Kernel::gate(State &s, std::int32_t w) {
    const std::int32_t j = s.job;
    const Job &job = jobs_[j];
    JobState &js = *job_[j];
    const std::int32_t own = index_in_job_[s.tensor];
    js.gates[s.iteration][w * job.forward_steps + tensors_[s.tensor].layer]--;
    js.closed[s.iteration][w]--;
    auto &delivered = result_.delivered[j][s.iteration][own];
    delivered = std::max(delivered, now_);
    const bool all = --js.workers_left[s.iteration] == 0;
    if (!js.held_by_servers[own]) served(j, s.iteration);
    if (js.done) return;
    if (js.is_errand[own]) {
        js.errands[s.iteration][w]--;
        if (js.workers[w].iteration == s.iteration) begin_backward(j, w);
    }
    if (all && !(job.servers && job.barrier)) {
        result_.iteration_end[j][s.iteration] = now_;
        if (s.iteration == job.iterations) return close(j);
        if (job.barrier) {
            js.begun = s.iteration + 1;
            for (std::int32_t other = 0; other < job.workers; other++) forward(j, other);
            return;
        }
    }
    if (job.servers || !job.barrier) js.begun = std::max(js.begun, s.iteration + 1);
    if (!instant_) forward(j, w);
}

// ---- schedules -----------------------------------------------------------------------------------------------------

std::uint64_t Kernel::piece_bytes(const Tensor &tensor, std::int32_t piece) const {
    const Program &p = programs_[tensor.program];
    if (!p.piece_bytes.empty()) return p.piece_bytes[piece];
    const std::int64_t pieces = p.pieces;
    return static_cast<std::uint64_t>(tensor.elements / pieces + (piece < tensor.elements % pieces)) *
           static_cast<std::uint64_t>(tensor.element_bytes);
}

Kernel::State &Kernel::state(std::int32_t iteration, std::int32_t t) {
    const Tensor &tensor = tensors_[t];
    JobState &js = *job_[tensor.job];
    auto &slot = js.states[iteration][index_in_job_[t]];
    if (slot) return *slot;
    const Program &p = programs_[tensor.program];
    slot = std::make_unique<State>();
    State &s = *slot;
    s.iteration = iteration, s.tensor = t, s.job = tensor.job, s.program = &p;
    s.at.assign(p.begin.begin(), p.begin.end() - 1);
    s.started.assign(p.nodes.size(), 0);
    s.missing.resize(p.ops.size());
    bool fabric = false;
    for (std::size_t o = 0; o < p.ops.size(); o++) s.missing[o] = p.ops[o].need;
    for (const std::int32_t n : p.nodes) fabric |= nodes_[n].is_switch;
    if (fabric) s.end.assign(p.ops.size(), 0), s.granted.assign(p.ops.size(), 0);
    s.unfinished = s.unfinished_servers = 0;
    s.unfinished_workers = p.workers;
    for (std::size_t n = 0; n < p.nodes.size(); n++) {
        if (p.begin[n] == p.begin[n + 1]) continue;
        s.unfinished++;
        s.unfinished_servers += p.holds[n];
    }
    for (std::size_t n = p.workers; n < p.nodes.size(); n++) {
        s.started[n] = 1;
        if (p.begin[n] < p.begin[n + 1]) advance(s, static_cast<std::int32_t>(n));
    }
    return s;
}

std::uint64_t Kernel::tie_of(const State &s, std::int32_t n, std::int32_t o, std::int32_t distance) const {
    return (static_cast<std::uint64_t>(s.tensor) << (DISTANCE_BITS + OP_BITS)) |
           (static_cast<std::uint64_t>(o - s.program->begin[n]) << DISTANCE_BITS) | static_cast<std::uint64_t>(distance);
}

void Kernel::advance(State &s, std::int32_t n) {
    // Before the start, what a node sends may be answered while it is at it.
    if (s.at[n] == s.program->begin[n + 1] || s.started[n] == 2) return;
    s.started[n] = 2;
    const bool through = go_on(s, n);
    s.started[n] = 1;
    if (through) finished(s, n);
}

// Does a node's operations up to one that waits; whether none is left.
bool Kernel::go_on(State &s, std::int32_t n) {
    const Program &p = *s.program;
    const std::int32_t end = p.begin[n + 1];
    while (s.at[n] < end) {
        const std::int32_t o = s.at[n];
        const Op &op = p.ops[o];
        if (op.kind == Kind::receive) {
            if (s.missing[o] > 0) return false;
            s.at[n]++;
            if (op.aggregate && !instant_ && pools_[p.nodes[n]].size > 0) {
                std::uint32_t id;
                if (spare_releases_.empty()) {
                    id = static_cast<std::uint32_t>(releases_.size());
                    releases_.emplace_back();
                } else {
                    id = spare_releases_.back();
                    spare_releases_.pop_back();
                }
                releases_[id] = {p.nodes[n], piece_bytes(tensors_[s.tensor], op.piece)};
                push(std::max(now_, s.end[o]), released_event, 0, id);
            }
            continue;
        }
        if (op.kind == Kind::compute && !instant_) {
            occupy(s, n, p.durations[op.target], tie_of(s, n, o, 0));
            return false;
        }
        s.at[n]++;
        if (op.kind == Kind::compute) continue;
        const bool to_worker = op.kind == Kind::multicast || op.target < p.workers ||
                               nodes_[p.nodes[op.target]].is_switch;
        if (p.holds[n] && job_[s.job]->holding && to_worker)
            job_[s.job]->held.push_back({&s, n, o});
        else
            emit(s, n, o);
    }
    return true;
}

// A node is through with a tensor.
void Kernel::finished(State &s, std::int32_t n) {
    const Program &p = *s.program;
    const std::int32_t j = s.job;
    JobState &js = *job_[j];
    if (p.begin[n] < p.begin[n + 1] && --s.unfinished == 0) {
        s.missing = {};
        s.end = {};
        s.granted = {};
    }
    if (p.holds[n]) {
        if (--s.unfinished_servers == 0) {
            auto &reduced = result_.reduced[j][s.iteration][index_in_job_[s.tensor]];
            reduced = std::max(reduced, now_);
        }
        served(j, s.iteration);
        if (js.done) return;
    }
    if (n >= p.workers) return;
    if (!instant_) next(s, n);
    gate(s, n);
}

// One of those is through with its part for whom an iteration with servers waits.
void Kernel::served(std::int32_t j, std::int32_t iteration) {
    const bool all = --job_[j]->servers_left[iteration] == 0;
    if (!all || iteration == 0 || !jobs_[j].servers || !jobs_[j].barrier) return;
    result_.iteration_end[j][iteration] = now_;
    if (iteration == jobs_[j].iterations) return close(j);
    open(j);
}

// Lets a node's processor work, when it has done what came before.
void Kernel::occupy(State &s, std::int32_t n, Time duration, std::uint64_t tie) {
    Time &until = occupied_[s.program->nodes[n]];
    until = std::max(until, now_) + duration;
    std::uint32_t id;
    if (spare_works_.empty()) {
        id = static_cast<std::uint32_t>(works_.size());
        works_.emplace_back();
    } else {
        id = spare_works_.back();
        spare_works_.pop_back();
    }
    works_[id] = {&s, n};
    push(until, worked_event, tie, id);
}

void Kernel::deliver(State &s, std::int32_t n, std::int32_t o, Time end) {
    s.missing[o]--;
    if (!s.end.empty()) s.end[o] = std::max(s.end[o], end);
    if (s.started[n] && s.at[n] == o && s.missing[o] == 0) advance(s, n);
}

std::uint32_t Kernel::message() {
    if (spare_.empty()) {
        messages_.emplace_back();
        return static_cast<std::uint32_t>(messages_.size() - 1);
    }
    const std::uint32_t id = spare_.back();
    spare_.pop_back();
    return id;
}

void Kernel::emit(State &s, std::int32_t n, std::int32_t o) {
    const Program &p = *s.program;
    const Op &op = p.ops[o];
    if (instant_) {
        if (op.kind == Kind::send) return deliver(s, op.target, op.target_op, now_);
        for (std::int32_t i = 0; i < op.peer_count; i++)
            deliver(s, p.peers[op.peers + i].target, p.peers[op.peers + i].target_op, now_);
        return;
    }
    const Time end = op.source >= 0 ? std::max(now_, s.end[op.source]) : now_;
    const std::uint64_t bytes = piece_bytes(tensors_[s.tensor], op.piece);
    const auto make = [&](std::int32_t target, std::int32_t target_op) {
        const std::uint32_t id = message();
        messages_[id] = {&s,   o,     n,   target, target_op, op.distance, p.nodes[n], -1,
                         bytes, end, !nodes_[p.nodes[n]].is_switch};
        result_.messages++;
        return id;
    };
    if (op.kind == Kind::multicast) {
        const std::uint32_t id = make(-1, -1);
        if (nodes_[p.nodes[n]].is_switch)
            replicate(id);
        else
            send(id, end);
        return;
    }
    const std::uint32_t id = make(op.target, op.target_op);
    const std::int32_t target = p.nodes[op.target];
    if (p.ops[op.target_op].aggregate && pools_[target].size > 0 && s.granted[op.target_op] != 2) {
        ungranted_[{&s, op.target_op}].push_back(id);
        if (s.granted[op.target_op] == 0) {
            s.granted[op.target_op] = 1;
            pools_[target].asked.push_back({&s, op.target_op});
            grant(target);
        }
        return;
    }
    send(id, end);
}

// ---- slots ---------------------------------------------------------------------------------------------------------

// Gives slots to the sums that asked for them, in that order.
void Kernel::grant(std::int32_t n) {
    Pool &pool = pools_[n];
    while (!pool.asked.empty()) {
        const Request next = pool.asked.front();
        State &s = *next.state;
        const std::uint64_t bytes = piece_bytes(tensors_[s.tensor], s.program->ops[next.op].piece);
        if (pool.used + bytes > pool.size) return;
        pool.used += bytes;
        pool.asked.pop_front();
        s.granted[next.op] = 2;
        const auto waiting = ungranted_.find({&s, next.op});
        const auto ids = std::move(waiting->second);
        ungranted_.erase(waiting);
        for (const std::uint32_t id : ids) send(id, std::max(now_, messages_[id].end));
    }
}

void Kernel::release(std::int32_t n, std::uint64_t bytes) {
    pools_[n].used -= bytes;
    grant(n);
}

// ---- links ---------------------------------------------------------------------------------------------------------

// The neighbour of a node on the way to another.
std::int32_t Kernel::toward(std::int32_t from, std::int32_t to) const {
    std::int32_t at = to;
    while (depth_[at] > depth_[from] + 1) at = nodes_[at].parent;
    if (depth_[at] == depth_[from] + 1 && nodes_[at].parent == from) return at;
    return nodes_[from].parent;
}

// From where it is on to the next link.
void Kernel::send(std::uint32_t id, Time end) {
    const Message &m = messages_[id];
    const Node &at = nodes_[m.at];
    if (!at.is_switch) return depart(id, at.up, at.parent, end);
    const std::int32_t next = toward(m.at, m.state->program->nodes[m.target]);
    depart(id, next == at.parent ? at.up : nodes_[next].down, next, end);
}

void Kernel::depart(std::uint32_t id, std::int32_t l, std::int32_t next, Time end) {
    const Message &m = messages_[id];
    LinkState &link = link_[l];
    const Job &job = jobs_[m.state->job];
    if (takes_turns(m)) return queue(id, l);
    if (m.first && job.order == Order::priority && (link.free > now_ || !link.waiting.empty())) {
        const auto less = [](const Waiting &a, const Waiting &b) {
            return std::pair(a.priority, a.sequence) > std::pair(b.priority, b.sequence);
        };
        link.waiting.push_back({tensors_[m.state->tensor].layer, sequence_++, id, end});
        std::push_heap(link.waiting.begin(), link.waiting.end(), less);
        if (!link.woken) {
            link.woken = true;
            push(link.free, woken_event, 0, static_cast<std::uint32_t>(l));
        }
        return;
    }
    transmit(id, l, next, end);
}

// Streams between hosts share their links; what switches work on is in packets of its own.
bool Kernel::takes_turns(const Message &m) const {
    return settings_.turn_bytes > 0 && m.first && m.target >= 0 && !nodes_[m.state->program->nodes[m.target]].is_switch;
}

void Kernel::queue(std::uint32_t id, std::int32_t l) {
    LinkState &link = link_[l];
    const Message &m = messages_[id];
    const Program &p = *m.state->program;
    const std::int32_t receiver = m.source < p.workers ? IN_ORDER : p.nodes[m.target];
    auto &stream = link.streams[receiver];
    stream.push_back(id);
    if (stream.size() == 1) link.turns.push_back(receiver);
    if (link.woken) return;
    link.woken = true;
    push(std::max(now_, link.free), woken_event, 0, static_cast<std::uint32_t>(l));
}

// The receiver whose turn it is gets a part of its first message.
void Kernel::turn(std::int32_t l) {
    LinkState &link = link_[l];
    const std::int32_t receiver = link.turns.front();
    link.turns.pop_front();
    auto &stream = link.streams[receiver];
    std::uint32_t id = stream.front();
    if (messages_[id].bytes > settings_.turn_bytes) {
        const std::uint32_t part = message();
        messages_[part] = messages_[id];
        messages_[part].bytes = settings_.turn_bytes;
        messages_[part].more = true;
        messages_[id].bytes -= settings_.turn_bytes;
        messages_[id].first = false;  // what a message takes beside its bytes, it has taken
        id = part;
    } else {
        stream.pop_front();
    }
    if (!stream.empty()) link.turns.push_back(receiver);
    transmit(id, l, nodes_[messages_[id].at].parent, now_);
}

void Kernel::transmit(std::uint32_t id, std::int32_t l, std::int32_t next, Time end) {
    Message &m = messages_[id];
    LinkState &link = link_[l];
    const Time own = static_cast<Time>(std::llround(static_cast<double>(m.bytes) * links_[l].ps_per_byte));
    Time start = std::max(now_, link.free);
    if (m.first) start += settings_.overhead;
    const Time done = std::max(end, start + own);
    link.free = start + own;
    result_.link_bytes[l] += m.bytes;
    result_.link_busy[l] += own + (m.first ? settings_.overhead : 0);
    m.first = false;
    m.from = m.at;
    m.at = next;
    m.end = done + links_[l].latency;
    const Program &p = *m.state->program;
    const bool last = m.target >= 0 && p.nodes[m.target] == next;
    const bool stores = !last                       ? settings_.store_and_forward
                        : !nodes_[next].is_switch   ? true
                        : p.ops[m.target_op].aggregate ? settings_.store_and_aggregate
                                                       : settings_.store_and_forward;
    const Time when = stores ? m.end : start + links_[l].latency;
    push(when, last ? delivered_event : arrived_event, tie_of(*m.state, m.source, m.op, m.distance), id);
}

void Kernel::arrive(std::uint32_t id) {
    if (messages_[id].target < 0)
        replicate(id);
    else
        send(id, messages_[id].end);
}

// At a switch: a copy for every host that hangs there, and one for every neighbour on the way to others.
void Kernel::replicate(std::uint32_t id) {
    const Message whole = messages_[id];
    spare_.push_back(id);
    const Program &p = *whole.state->program;
    const Op &op = p.ops[whole.op];
    std::vector<std::int32_t> onward;
    for (std::int32_t i = 0; i < op.peer_count; i++) {
        const Peer peer = p.peers[op.peers + i];
        const std::int32_t target = p.nodes[peer.target], next = toward(whole.at, target);
        if (next == target) {
            const std::uint32_t copy = message();
            messages_[copy] = whole;
            messages_[copy].target = peer.target;
            messages_[copy].target_op = peer.target_op;
            messages_[copy].distance = peer.distance;
            depart(copy, next == nodes_[whole.at].parent ? nodes_[whole.at].up : nodes_[next].down, next, whole.end);
        } else if (next != whole.from && std::find(onward.begin(), onward.end(), next) == onward.end()) {
            onward.push_back(next);
        }
    }
    for (const std::int32_t next : onward) {
        const std::uint32_t copy = message();
        messages_[copy] = whole;
        depart(copy, next == nodes_[whole.at].parent ? nodes_[whole.at].up : nodes_[next].down, next, whole.end);
    }
}

void Kernel::wake(std::int32_t l) {
    LinkState &link = link_[l];
    link.woken = false;
    const auto less = [](const Waiting &a, const Waiting &b) {
        return std::pair(a.priority, a.sequence) > std::pair(b.priority, b.sequence);
    };
    if (!link.turns.empty()) {
        turn(l);
        if (link.turns.empty()) return;
        link.woken = true;
        return push(link.free, woken_event, 0, static_cast<std::uint32_t>(l));
    }
    if (link.waiting.empty()) return;
    std::pop_heap(link.waiting.begin(), link.waiting.end(), less);
    const Waiting next = link.waiting.back();
    link.waiting.pop_back();
    auto rest = std::move(link.waiting);
    link.waiting.clear();
    const std::int32_t to = nodes_[messages_[next.message].at].parent;
    depart(next.message, l, to, next.end);
    link.waiting = std::move(rest);
    if (!link.waiting.empty()) {
        link.woken = true;
        push(link.free, woken_event, 0, static_cast<std::uint32_t>(l));
    }
}

}  // namespace netfold::simulation
