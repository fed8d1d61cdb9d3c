#include "schedules.h"

#include <algorithm>

namespace netfold::simulation {

Schedules::Schedules(const Model &model, Events &events, Links &links)
    : model_(model), events_(events), links_(links), occupied_(model.nodes.size()) {
    for (std::size_t j = 0; j < model.jobs.size(); j++) {
        auto &iterations = states_.emplace_back(model.jobs[j].iterations + 1);
        for (auto &each : iterations) each.resize(model.tensors_of_job[j].size());
    }
}

State &Schedules::state(std::int32_t iteration, std::int32_t t) {
    const Tensor &tensor = model_.tensors[t];
    auto &slot = states_[tensor.job][iteration][model_.index_in_job[t]];
    if (slot) return *slot;
    const Program &p = model_.programs[tensor.program];
    slot = std::make_unique<State>();
    State &s = *slot;
    s.iteration = iteration, s.tensor = t, s.job = tensor.job, s.program = &p;
    s.at.assign(p.begin.begin(), p.begin.end() - 1);
    s.started.assign(p.nodes.size(), 0);
    s.unsent.assign(p.nodes.size(), 0);
    s.missing.resize(p.ops.size());
    bool fabric = false;
    for (std::size_t o = 0; o < p.ops.size(); o++) s.missing[o] = p.ops[o].need;
    for (const std::int32_t n : p.nodes) fabric |= model_.nodes[n].is_switch;
    if (fabric) s.end.assign(p.ops.size(), 0);
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

void Schedules::start(State &s, std::int32_t w) {
    s.started[w] = 1;
    request(s, w);
    advance(s, w);
    if (s.at[w] == s.program->begin[w + 1] && s.program->begin[w] == s.program->begin[w + 1]) finished(s, w);
}

void Schedules::advance(State &s, std::int32_t n) {
    // Before the start, a node's messages may be answered while it is still sending.
    if (s.at[n] == s.program->begin[n + 1] || s.started[n] == 2) return;
    s.started[n] = 2;
    const bool through = go_on(s, n);
    s.started[n] = 1;
    if (through && s.unsent[n] == 0) finished(s, n);
}

// Executes a node's operations up to one that blocks; returns whether none is left.
bool Schedules::go_on(State &s, std::int32_t n) {
    const Program &p = *s.program;
    const std::int32_t end = p.begin[n + 1];
    while (s.at[n] < end) {
        const std::int32_t o = s.at[n];
        const Op &op = p.ops[o];
        if (op.kind == Kind::receive) {
            if (s.missing[o] > 0) return false;
            s.at[n]++;
            continue;
        }
        if (op.kind == Kind::compute && !instant_) {
            occupy(s, n, p.durations[op.target], s.tie(n, o, 0));
            return false;
        }
        s.at[n]++;
        if (op.kind == Kind::compute) continue;
        const bool to_worker =
            op.kind == Kind::multicast || op.target < p.workers || model_.nodes[p.nodes[op.target]].is_switch;
        if (p.holds[n] && to_worker && observer_->hold(s, n, o)) continue;
        emit(s, n, o);
    }
    return true;
}

void Schedules::finished(State &s, std::int32_t n) {
    const Program &p = *s.program;
    if (p.begin[n] < p.begin[n + 1] && --s.unfinished == 0) {
        s.missing = std::vector<std::uint16_t>();  // gives the memory back, which `= {}` does not
        s.end = std::vector<Time>();
    }
    observer_->node_done(s, n);
}

// Occupies a node's processor, after its earlier work.
void Schedules::occupy(State &s, std::int32_t n, Time duration, std::uint64_t tie) {
    Time &until = occupied_[s.program->nodes[n]];
    until = std::max(until, events_.now()) + duration;
    std::uint32_t id = 0;
    if (spare_works_.empty()) {
        id = static_cast<std::uint32_t>(works_.size());
        works_.emplace_back();
    } else {
        id = spare_works_.back();
        spare_works_.pop_back();
    }
    works_[id] = {&s, n};
    events_.push(until, worked_event, tie, id);
}

void Schedules::worked(std::uint32_t id) {
    const Work done = works_[id];
    spare_works_.push_back(id);
    const bool last = ++done.state->at[done.node] == done.state->program->begin[done.node + 1];
    if (!last)
        advance(*done.state, done.node);
    else if (done.state->unsent[done.node] == 0)
        finished(*done.state, done.node);
}

// A node is through with a tensor when its messages have left it, too.
void Schedules::handed_over(State &s, std::int32_t n) {
    if (s.program->holds[n]) return;
    if (--s.unsent[n] == 0 && s.started[n] && s.at[n] == s.program->begin[n + 1]) finished(s, n);
}

// A worker begins a tensor, and requests its messages.
void Schedules::request(State &s, std::int32_t w) {
    std::erase_if(s.unrequested, [&](std::uint32_t id) {
        if (links_[id].target != w) return false;
        links_.requested(id);
        return true;
    });
}

void Schedules::deliver(State &s, std::int32_t n, std::int32_t o, Time end) {
    s.missing[o]--;
    if (!s.end.empty()) s.end[o] = std::max(s.end[o], end);
    if (s.started[n] && s.at[n] == o && s.missing[o] == 0) advance(s, n);
}

void Schedules::emit(State &s, std::int32_t n, std::int32_t o) {
    const Program &p = *s.program;
    const Op &op = p.ops[o];
    if (instant_) {
        if (op.kind == Kind::send) return deliver(s, op.target, op.target_op, events_.now());
        for (std::int32_t i = 0; i < op.peer_count; i++)
            deliver(s, p.peers[op.peers + i].target, p.peers[op.peers + i].target_op, events_.now());
        return;
    }
    const bool goes_on = op.source >= 0 && !s.end.empty();
    const Time end = goes_on ? std::max(events_.now(), s.end[op.source]) : events_.now();
    const std::uint64_t bytes = message_bytes(s, n, op);
    const auto make = [&](std::int32_t target, std::int32_t target_op) {
        const bool first = !model_.nodes[p.nodes[n]].is_switch;
        return links_.add({&s, o, n, target, target_op, op.distance, p.nodes[n], -1, bytes, end, first});
    };
    if (op.kind == Kind::multicast) {
        const std::uint32_t id = make(-1, -1);
        if (model_.nodes[p.nodes[n]].is_switch)
            links_.replicate(id);
        else
            links_.send(id, end);
        return;
    }
    const std::uint32_t id = make(op.target, op.target_op);
    if (links_.takes_turns(links_[id])) {
        // A server that distributes at a barrier is through with the tensor before, once it is summed.
        if (!p.holds[n]) s.unsent[n]++;
        if (!links_.is_requested(links_[id])) s.unrequested.push_back(id);
    }
    if (model_.jobs[s.job].slots > 0 && model_.opens(p, n, op)) return open(s, o, id);
    links_.send(id, end);
}

// What a piece takes on a link. Frames of the slot protocol are of one size: the last one of a piece is padded.
std::uint64_t Schedules::message_bytes(const State &s, std::int32_t n, const Op &op) const {
    const Program &p = *s.program;
    const std::uint64_t bytes = model_.piece_bytes(model_.tensors[s.tensor], op.piece);
    const Job &job = model_.jobs[s.job];
    // Servers behind a switch send frames, too.
    const bool in_frames = p.servers_stream || model_.nodes[p.nodes[n]].is_switch || op.kind == Kind::multicast
                           || model_.nodes[p.nodes[op.target]].is_switch;
    if (!job.padded || !in_frames) return bytes;
    return (bytes + job.frame_bytes - 1) / job.frame_bytes * job.frame_bytes;
}

// What the prologues of a tensor's piece take on a link.
std::uint64_t Schedules::prologue_bytes(std::int32_t tensor, std::int32_t piece) const {
    const Job &job = model_.jobs[model_.tensors[tensor].job];
    if (job.opened_by_each == 0) return 0;
    Tensor whole = model_.tensors[tensor];
    whole.elements = model_.elements_with_parts[tensor];
    const std::uint64_t chunks = (model_.piece_bytes(whole, piece) + job.frame_bytes - 1) / job.frame_bytes;
    const std::uint64_t opened = std::min(job.opened, chunks);
    return (opened + job.opened_by_each - 1) / job.opened_by_each * job.frame_bytes;
}

// A host has handed over a tensor. Its prologue leaves, and what the tensor carries when the prologue's result is
// there. The parts of a tensor have one prologue.
void Schedules::open(State &s, std::int32_t o, std::uint32_t message) {
    const Program &p = *s.program;
    const std::int32_t piece = p.ops[o].piece, first = model_.tensors[s.tensor].first;
    Opening &opening = opening_[{s.iteration, first, piece}];
    if (first == s.tensor) {
        const std::uint64_t bytes = prologue_bytes(first, piece);
        links_.occupy(model_.nodes[links_[message].at].up, bytes);
        if (++opening.hosts == p.summed_from[piece]) {
            opening.since = events_.now();
            links_.occupy_results(p, piece, bytes);
        }
    }
    opening.waiting.push_back(message);
    if (opening.since < 0) return;
    for (const std::uint32_t id : opening.waiting) {
        const Message &m = links_[id];
        const Time result = opening.since + model_.jobs[s.job].round_trip[m.at];
        const std::uint64_t tie = m.state->tie(m.source, m.op, m.distance);
        events_.push(std::max(result, events_.now()), opened_event, tie, id);
    }
    opening.waiting.clear();
}

void Schedules::opened(std::uint32_t message) { links_.send(message, events_.now()); }

std::vector<Stuck> Schedules::stuck() const {
    std::vector<Stuck> out;
    for (std::size_t j = 0; j < states_.size(); j++)
        for (const auto &iteration : states_[j])
            for (const auto &s : iteration) {
                if (!s) continue;
                for (std::size_t n = 0; n + 1 < s->program->begin.size(); n++)
                    if (s->at[n] < s->program->begin[n + 1])
                        out.push_back(
                            {static_cast<std::int32_t>(j), s->tensor, static_cast<std::int32_t>(n), s->at[n]});
            }
    return out;
}

}  // namespace netfold::simulation
