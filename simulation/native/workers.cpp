#include "workers.h"

#include <algorithm>

#include "mix.h"

namespace netfold::simulation {

Workers::Workers(const Model &model, Events &events, Result &result, Schedules &schedules)
    : model_(model),
      events_(events),
      result_(result),
      schedules_(schedules),
      job_(model.jobs.size()),
      open_jobs_(static_cast<std::int32_t>(model.jobs.size())) {
    for (std::size_t j = 0; j < model.jobs.size(); j++) {
        first_worker_.push_back(static_cast<std::int32_t>(workers_.size()));
        for (std::int32_t w = 0; w < model.jobs[j].workers; w++) workers_.emplace_back(static_cast<std::int32_t>(j), w);
    }
}

void Workers::start() {
    for (std::size_t j = 0; j < job_.size(); j++) start_job(static_cast<std::int32_t>(j));
}

bool Workers::hold(State &s, std::int32_t n, std::int32_t o) {
    if (!job_[s.job].holding) return false;
    job_[s.job].held.push_back({&s, n, o});
    return true;
}

void Workers::start_job(std::int32_t j) {
    const Job &job = model_.jobs[j];
    JobState &js = job_[j];
    const std::size_t iterations = job.iterations + 1, tensors = model_.tensors_of_job[j].size();
    js.workers.resize(job.workers);
    js.queues = job.channels;
    for (const std::int32_t t : model_.tensors_of_job[j])
        js.queues = std::max(js.queues, job.channels + model_.tensors[t].lane);
    js.channels.resize(static_cast<std::size_t>(job.workers) * js.queues);
    js.asked.assign(job.workers, 0);
    js.tensors_of_layer.assign(job.forward_steps, 0);
    for (const std::int32_t t : model_.tensors_of_job[j]) js.tensors_of_layer[model_.tensors[t].layer]++;
    js.gates.resize(iterations);
    js.closed.resize(iterations);
    js.errands.assign(iterations,
                      std::vector<std::int32_t>(job.workers, static_cast<std::int32_t>(job.errands.size())));
    js.is_errand.assign(tensors, 0);
    for (const std::int32_t t : job.errands) js.is_errand[model_.index_in_job[t]] = 1;
    js.needed_at.assign(tensors, -1);
    for (std::size_t step = 0; step < job.awaited.size(); step++)
        for (const std::int32_t t : job.awaited[step])
            js.needed_at[model_.index_in_job[t]] = static_cast<std::int32_t>(step);
    std::vector<std::int32_t> needs;
    for (std::int32_t w = 0; w < job.workers; w++)
        for (const auto &step : job.awaited) needs.push_back(static_cast<std::int32_t>(step.size()));
    js.needs.assign(iterations, needs);
    for (std::size_t i = 0; i < iterations; i++) {
        for (std::int32_t w = 0; w < job.workers; w++)
            js.gates[i].insert(js.gates[i].end(), js.tensors_of_layer.begin(), js.tensors_of_layer.end());
        js.closed[i].assign(job.workers, static_cast<std::int32_t>(tensors));
    }
    std::int64_t servers = 0;
    for (const std::int32_t t : model_.tensors_of_job[j]) {
        const Program &p = model_.programs[model_.tensors[t].program];
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
        // The state that a previous iteration would have left: everything summed, the servers about to distribute.
        schedules_.set_instant(true);
        js.holding = true;
        for (const std::int32_t t : model_.tensors_of_job[j]) {
            for (std::int32_t w = 0; w < job.workers; w++) schedules_.start(schedules_.state(0, t), w);
        }
        schedules_.set_instant(false);
        open(j);
    } else {
        for (auto &gates : js.gates[0]) gates = 0;
        for (auto &closed : js.closed[0]) closed = 0;
    }
    for (std::int32_t w = 0; w < job.workers; w++) forward(j, w);
}

// Opens the barrier: the servers distribute.
void Workers::open(std::int32_t j) {
    const Job &job = model_.jobs[j];
    JobState &js = job_[j];
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
        const Tensor &tensor = model_.tensors[h.state->tensor];
        const auto order = static_cast<std::uint64_t>(tensor.order);
        const auto number = static_cast<std::uint64_t>(h.op);
        const auto target = static_cast<std::uint64_t>(op.kind == Kind::send ? op.target : 0);
        switch (job.order) {
        case Order::round_robin: keys.push_back({order, number, i}); break;
        case Order::block: keys.push_back({target, order << 24 | number, i}); break;
        case Order::random:
            keys.push_back({mix(job.seed
                                ^ mix(static_cast<std::uint64_t>(h.state->iteration) << 48
                                      | static_cast<std::uint64_t>(h.state->tensor) << 24 | number)),
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
    for (const Key &key : keys) schedules_.emit(*held[key.index].state, held[key.index].node, held[key.index].op);
    if (!job.barrier) return;
    js.holding = true;  // until the next one
}

void Workers::close(std::int32_t j) {
    if (!job_[j].done) {
        job_[j].done = true;
        open_jobs_--;
    }
}

// Continues the forward pass, if possible.
void Workers::forward(std::int32_t j, std::int32_t w) {
    const Job &job = model_.jobs[j];
    JobState &js = job_[j];
    Worker &worker = js.workers[w];
    if (worker.busy || worker.backward || worker.iteration > job.iterations) return;
    if (worker.iteration > js.begun) return;
    const std::int32_t results = worker.iteration - 1;
    const bool ready =
        job.pipelined ? js.gates[results][w * job.forward_steps + worker.step] == 0 : js.closed[results][w] == 0;
    if (!ready || !come_to(j, w, worker.step)) return;
    worker.busy = true;
    const std::int64_t row = (static_cast<std::int64_t>(worker.iteration - 1) * job.workers + w) % job.rows;
    events_.push(events_.now() + job.forward[row * job.forward_steps + worker.step], computed_event,
                 first_worker_[j] + w, first_worker_[j] + w);
}

void Workers::computed(std::int32_t j, std::int32_t w) {
    const Job &job = model_.jobs[j];
    Worker &worker = job_[j].workers[w];
    const std::int32_t iteration = worker.iteration;
    if (!worker.backward) {
        worker.busy = false;
        if (++worker.step < job.forward_steps) return forward(j, w);
        result_.forward_end[j][static_cast<std::size_t>(iteration) * job.workers + w] = events_.now();
        worker.backward = true;
        worker.step = 0;
        worker.between = true;
        for (const std::int32_t t : job.errands) schedules_.start(schedules_.state(iteration, t), w);
        return begin_backward(j, w);
    }
    const std::int32_t step = worker.step++;
    const bool last = worker.step == job.backward_steps;
    if (last) {
        result_.backward_end[j][static_cast<std::size_t>(iteration) * job.workers + w] = events_.now();
        worker.backward = false;
        worker.step = 0;
        worker.iteration++;
    } else {
        backward_step(j, w);
    }
    for (const std::int32_t t : job.released[step]) begin(schedules_.state(iteration, t), w);
    if (last) forward(j, w);
}

void Workers::backward_step(std::int32_t j, std::int32_t w) {
    const Job &job = model_.jobs[j];
    const Worker &worker = job_[j].workers[w];
    if (!come_to(j, w, job.forward_steps + worker.step)) return;
    const std::int64_t row = (static_cast<std::int64_t>(worker.iteration - 1) * job.workers + w) % job.rows;
    events_.push(events_.now() + job.backward[row * job.backward_steps + worker.step], computed_event,
                 first_worker_[j] + w, first_worker_[j] + w);
}

// Begins what a step asks for, once; whether the worker has all that it needs to compute the step, which is then under
// way.
bool Workers::come_to(std::int32_t j, std::int32_t w, std::int32_t step) {
    const Job &job = model_.jobs[j];
    Worker &worker = job_[j].workers[w];
    const std::int32_t iteration = worker.iteration;
    if (!worker.at_step) {
        worker.at_step = true;
        for (const std::int32_t t : job.asked[step]) begin(schedules_.state(iteration, t), w);
        if (!worker.at_step) return false;  // what came at once has let it go on
    }
    const std::size_t steps = job.asked.size();
    if (job_[j].needs[iteration][w * steps + step] > 0) return false;
    worker.at_step = false;
    return true;
}

// Goes over to the backward pass, if nothing between the passes is left.
void Workers::begin_backward(std::int32_t j, std::int32_t w) {
    Worker &worker = job_[j].workers[w];
    if (!worker.between || job_[j].errands[worker.iteration][w] > 0) return;
    worker.between = false;
    backward_step(j, w);
}

// A tensor's gradients are there: its turn comes when the worker is through with what is before it in its channel; that
// of a strategy's own messages at once.
void Workers::begin(State &s, std::int32_t w) {
    const std::int32_t channels = model_.jobs[s.job].channels, lane = model_.tensors[s.tensor].lane;
    const bool in_lane = lane > 0;
    if ((channels == 0 && !in_lane) || !s.program->piece_bytes.empty()) return schedules_.start(s, w);
    JobState &js = job_[s.job];
    s.channel = in_lane ? channels + lane - 1 : js.asked[w]++ % channels;
    auto &channel = js.channels[w * js.queues + s.channel];
    channel.push_back(&s);
    if (channel.size() == 1) schedules_.start(s, w);
}

// A worker is through with a tensor.
void Workers::next(State &s, std::int32_t w) {
    const std::int32_t queues = job_[s.job].queues;
    for (std::int32_t c = 0; c < queues; c++) {
        auto &channel = job_[s.job].channels[w * queues + c];
        if (channel.empty() || channel.front() != &s) continue;
        channel.pop_front();
        if (!channel.empty()) schedules_.start(*channel.front(), w);
        return;
    }
}

// A worker has a tensor's result.
void Workers::gate(State &s, std::int32_t w) {
    const std::int32_t j = s.job;
    const Job &job = model_.jobs[j];
    JobState &js = job_[j];
    const std::int32_t own = model_.index_in_job[s.tensor];
    js.gates[s.iteration][w * job.forward_steps + model_.tensors[s.tensor].layer]--;
    js.closed[s.iteration][w]--;
    auto &delivered = result_.delivered[j][s.iteration][own];
    delivered = std::max(delivered, events_.now());
    const bool all = --js.workers_left[s.iteration] == 0;
    if (!js.held_by_servers[own]) served(j, s.iteration);
    if (js.done) return;
    if (js.is_errand[own]) {
        js.errands[s.iteration][w]--;
        if (js.workers[w].iteration == s.iteration) begin_backward(j, w);
    }
    if (const std::int32_t step = js.needed_at[own]; step >= 0 && s.iteration > 0) {
        js.needs[s.iteration][w * job.asked.size() + step]--;
        const Worker &worker = js.workers[w];
        if (worker.iteration == s.iteration && worker.backward && worker.at_step) backward_step(j, w);
    }
    if (all && !(job.servers && job.barrier)) {
        result_.iteration_end[j][s.iteration] = events_.now();
        if (s.iteration == job.iterations) return close(j);
        if (job.barrier) {
            js.begun = s.iteration + 1;
            for (std::int32_t other = 0; other < job.workers; other++) forward(j, other);
            return;
        }
    }
    if (job.servers || !job.barrier) js.begun = std::max(js.begun, s.iteration + 1);
    if (!schedules_.instant()) forward(j, w);
}

void Workers::node_done(State &s, std::int32_t n) {
    const Program &p = *s.program;
    const std::int32_t j = s.job;
    JobState &js = job_[j];
    if (p.holds[n]) {
        if (--s.unfinished_servers == 0) {
            auto &reduced = result_.reduced[j][s.iteration][model_.index_in_job[s.tensor]];
            reduced = std::max(reduced, events_.now());
        }
        served(j, s.iteration);
        if (js.done) return;
    }
    if (n >= p.workers) return;
    if (!schedules_.instant()) next(s, n);
    gate(s, n);
}

// One of those is through with its part for whom an iteration with servers waits.
void Workers::served(std::int32_t j, std::int32_t iteration) {
    const bool all = --job_[j].servers_left[iteration] == 0;
    if (!all || iteration == 0 || !model_.jobs[j].servers || !model_.jobs[j].barrier) return;
    result_.iteration_end[j][iteration] = events_.now();
    if (iteration == model_.jobs[j].iterations) return close(j);
    open(j);
}

}  // namespace netfold::simulation
