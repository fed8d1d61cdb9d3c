#include "links.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "mix.h"

namespace netfold::simulation {
namespace {

// Of a link's heap.
bool goes_later(const Waiting &a, const Waiting &b) {
    return std::pair(a.priority, a.sequence) > std::pair(b.priority, b.sequence);
}

}  // namespace

Links::Links(const Model &model, Events &events, Result &result)
    : model_(model), events_(events), result_(result), link_(model.links.size()) {
    result_.link_bytes.resize(model.links.size());
    result_.link_busy.resize(model.links.size());
}

std::uint32_t Links::add(const Message &message) {
    const std::uint32_t id = this->message();
    messages_[id] = message;
    result_.messages++;
    return id;
}

std::uint32_t Links::message() {
    if (spare_.empty()) {
        messages_.emplace_back();
        return static_cast<std::uint32_t>(messages_.size() - 1);
    }
    const std::uint32_t id = spare_.back();
    spare_.pop_back();
    return id;
}

void Links::send(std::uint32_t id, Time end) {
    const Message &m = messages_[id];
    const Node &at = model_.nodes[m.at];
    if (!at.is_switch) return depart(id, at.up, at.parent, end);
    const std::int32_t next = model_.toward(m.at, m.state->program->nodes[m.target]);
    depart(id, next == at.parent ? at.up + cable(m, at) : model_.nodes[next].down + cable(m, model_.nodes[next]), next,
           end);
}

// Of a node's equal cables to its parent, the one that a message uses: twice its number. All messages of a host to
// another one use the same, by a hash as equal-cost multipath has it; what a switch sums or multicasts uses the first.
std::int32_t Links::cable(const Message &m, const Node &node) const {
    if (node.cables <= 1) return 0;
    const std::vector<std::int32_t> &nodes = m.state->program->nodes;
    if (m.target < 0 || model_.nodes[nodes[m.target]].is_switch || model_.nodes[nodes[m.source]].is_switch) return 0;
    const auto flow = static_cast<std::uint64_t>(nodes[m.source]) << 32 | static_cast<std::uint64_t>(nodes[m.target]);
    const std::uint64_t hash = mix(model_.jobs[m.state->job].seed ^ mix(flow));
    return 2 * static_cast<std::int32_t>(hash % static_cast<std::uint64_t>(node.cables));
}

void Links::depart(std::uint32_t id, std::int32_t l, std::int32_t next, Time end) {
    const Message &m = messages_[id];
    LinkState &link = link_[l];
    const Job &job = model_.jobs[m.state->job];
    if (takes_turns(m)) return queue(id, l);
    const bool mixed = model_.settings.turn_bytes > 0 && to_fabric(m) && model_.tensors[m.state->tensor].lane > 0;
    const bool ordered = m.first && (job.order == Order::priority || mixed);
    if (ordered && (link.free > events_.now() || !link.waiting.empty())) {
        const std::int32_t layer = job.order == Order::priority ? model_.tensors[m.state->tensor].layer : 0;
        link.waiting.push_back({is_chunk(m) ? -1 : layer, sequence_++, id, end});
        std::push_heap(link.waiting.begin(), link.waiting.end(), goes_later);
        if (!link.woken) {
            link.woken = true;
            events_.push(link.free, woken_event, 0, static_cast<std::uint32_t>(l));
        }
        return;
    }
    transmit(id, l, next, end);
}

// Streams between hosts share their links; packets for switches to process are separate.
bool Links::takes_turns(const Message &m) const {
    return model_.settings.turn_bytes > 0 && m.first && m.target >= 0
           && !model_.nodes[m.state->program->nodes[m.target]].is_switch;
}

// Words for the fabric to multicast: they go ahead of a host's other packets, where not whole messages follow each
// other.
bool Links::is_chunk(const Message &m) const {
    const Program &p = *m.state->program;
    return to_fabric(m) && m.target >= 0 && !p.ops[m.target_op].aggregate;
}

// Frames of the slot protocol, from a host.
bool Links::to_fabric(const Message &m) const {
    return !model_.nodes[m.at].is_switch && (m.target < 0 || model_.nodes[m.state->program->nodes[m.target]].is_switch);
}

Window &Links::window(const Message &m) {
    const std::int32_t j = m.state->job;
    const Job &job = model_.jobs[j];
    // A server has a stream for each channel, to which tensors are dealt out in turns.
    const bool dealt = job.channels > 1 && m.source >= m.state->program->workers;
    // Collectives of different kinds have slots of their own.
    const std::int32_t lane = model_.tensors[m.state->tensor].lane;
    const std::int32_t stream = dealt ? model_.index_in_job[m.state->tensor] % job.channels : -lane;
    return windows_.try_emplace({j, m.at, stream}, job.slots, job.round_trip[m.at]).first->second;
}

// The line in which a message waits at its sender: a worker has one for each channel, and sends to one host after the
// other; a server has one for each receiver, and sends to all at a time.
std::int32_t Links::line(const Message &m) const {
    const Program &p = *m.state->program;
    return m.source < p.workers ? -1 - m.state->channel : p.nodes[m.target];
}

std::int32_t Links::uplink(const Message &m) const { return model_.nodes[m.state->program->nodes[m.source]].up; }

Links::Connection &Links::connection(const Message &m) {
    return link_[uplink(m)].connections[{m.state->job, m.distance}];
}

void Links::queue(std::uint32_t id, std::int32_t l) {
    const Message &m = messages_[id];
    const std::int32_t its = line(m);
    link_[l].lines[its].push_back({m.state, m.source, m.target, m.distance, id, m.bytes, 0, false});
    hand_over(l, its);
    // Also if it is not requested yet: a request of this very instant is here at once, as if all hosts began in step.
    wake_at(l, events_.now());
}

// Lets a link look for something to send, at a time.
void Links::wake_at(std::int32_t l, Time at) {
    LinkState &link = link_[l];
    if (link.woken) return;
    link.woken = true;
    events_.push(std::max(at, link.free), woken_event, 0, static_cast<std::uint32_t>(l));
}

// The same, if there is something to look for.
void Links::nudge(std::int32_t l, Time at) {
    if (!link_[l].turns.empty() || !link_[l].requested.empty()) wake_at(l, at);
}

// Hands over what connections have room for: messages to the first one's host, if they are requested. A host is through
// with a message when the network has all of it, although its last part may still have to leave; then come messages to
// the next host.
void Links::hand_over(std::int32_t l, std::int32_t of) {
    LinkState &link = link_[l];
    auto &line = link.lines[of];
    const std::uint64_t window = model_.settings.window_bytes;
    const auto connection = [&](const Unsent &each) -> Connection & {
        return link.connections[{each.state->job, each.distance}];
    };
    while (!line.empty()) {
        for (Unsent &each : line) {
            if (each.target != line.front().target) break;
            if (each.admitted || !each.state->is_requested(each.target)) continue;
            const std::int32_t receiver = each.state->program->nodes[each.target];
            auto &stream = link.streams[receiver];
            stream.push_back(each.message);
            if (stream.size() == 1) link.turns.push_back(receiver);
            each.admitted = true;
            each.end = connection(each).queued += each.bytes;
        }
        const Unsent &first = line.front();
        if (!first.admitted) return;
        const bool limited = window > 0 && !first.state->program->servers_stream;
        if (limited && first.end > connection(first).acknowledged + window) return;
        handed_over_.emplace_back(first.state, first.source);
        line.pop_front();
    }
}

State *Links::take_handed_over(std::int32_t &node) {
    if (handed_over_.empty()) return nullptr;
    State *state = handed_over_.front().first;
    node = handed_over_.front().second;
    handed_over_.pop_front();
    return state;
}

bool Links::is_requested(const Message &m) const { return m.state->is_requested(m.target); }

void Links::requested(std::uint32_t id) {
    const Message &m = messages_[id];
    link_[uplink(m)].requested.push_back(line(m));
    nudge(uplink(m), events_.now() + way_back(m));
}

// Whether the last frame of a message is lost on its way, by chance that depends on the job's seed.
bool Links::is_lost(const Message &m) const {
    const std::uint64_t tie = m.state->tie(m.source, m.op, m.distance);
    const auto place = static_cast<std::uint64_t>(m.source) << 32 | static_cast<std::uint64_t>(m.state->iteration);
    const std::uint64_t drawn = mix(model_.jobs[m.state->job].seed ^ mix(tie ^ mix(place)));
    return static_cast<double>(drawn >> 11) * 0x1p-53 >= m.arrives;
}

bool Links::has_room(const Message &m, std::uint64_t bytes) {
    const std::uint64_t window = model_.settings.window_bytes;
    if (window == 0 || m.state->program->servers_stream) return true;
    const std::uint64_t sent = connection(m).under_way;
    return sent == 0 || sent + bytes <= window;
}

// The receiver whose turn it is gets a part of its first message. Returns whether one may be sent.
bool Links::turn(std::int32_t l) {
    LinkState &link = link_[l];
    const std::uint64_t part_bytes = model_.settings.turn_bytes;
    const auto ready = std::find_if(link.turns.begin(), link.turns.end(), [&](std::int32_t receiver) {
        const Message &m = messages_[link.streams[receiver].front()];
        return has_room(m, std::min(m.bytes, part_bytes));
    });
    if (ready == link.turns.end()) return false;
    const std::int32_t receiver = *ready;
    auto &stream = link.streams[receiver];
    std::uint32_t id = stream.front();
    if (messages_[id].bytes > model_.settings.turn_bytes) {
        const std::uint32_t part = message();
        messages_[part] = messages_[id];
        messages_[part].bytes = model_.settings.turn_bytes;
        messages_[part].more = true;
        messages_[id].bytes -= model_.settings.turn_bytes;
        messages_[id].first = false;  // the overhead beside a message's bytes has been paid
        id = part;
    } else {
        stream.pop_front();
    }
    Message &m = messages_[id];
    // A worker's channels, and a server's receivers, take turns. In one channel the tail of a message to one host
    // leaves before the next one, to another.
    const bool rotates = m.source >= m.state->program->workers || model_.jobs[m.state->job].channels > 1;
    if (stream.empty() || rotates) link.turns.erase(ready);
    if (!stream.empty() && rotates) link.turns.push_back(receiver);
    if (model_.settings.window_bytes > 0 && !m.state->program->servers_stream) {
        m.windowed = true;
        connection(m).under_way += m.bytes;
    }
    // What a server passes on as it comes ends no earlier than it has come.
    transmit(id, l, model_.nodes[m.at].parent, m.more ? events_.now() : std::max(events_.now(), m.end));
    return true;
}

// Latency from a message's target to its source.
Time Links::way_back(const Message &m) const {
    const std::vector<std::int32_t> &nodes = m.state->program->nodes;
    Time back = 0;
    on_the_way(nodes[m.target], nodes[m.source], [&](std::int32_t l) { back += model_.links[l].latency; });
    return back;
}

void Links::acknowledge(std::uint32_t id) {
    const Message &m = messages_[id];
    const Time back = way_back(m);
    if (back == 0) return acknowledged(id);
    events_.push(events_.now() + back, acknowledged_event, m.state->tie(m.source, m.op, m.distance), id);
}

// The acknowledgement is at the sender, whose window has room for more.
void Links::acknowledged(std::uint32_t id) {
    const Message &m = messages_[id];
    release(id);
    Connection &its = connection(m);
    its.under_way -= m.bytes;
    its.acknowledged += m.bytes;
    hand_over(uplink(m), line(m));
    nudge(uplink(m), events_.now());
}

void Links::transmit(std::uint32_t id, std::int32_t l, std::int32_t next, Time end) {
    Message &m = messages_[id];
    LinkState &link = link_[l];
    const Time own = static_cast<Time>(std::llround(static_cast<double>(m.bytes) * model_.links[l].ps_per_byte));
    Time start = std::max(events_.now(), link.free);
    if (m.first) start += model_.settings.overhead;
    link.free = start + own;
    Time sent = start + own;
    const Job &job = model_.jobs[m.state->job];
    if (m.first && job.slots > 0 && to_fabric(m)) {
        const std::uint64_t frames = std::max<std::uint64_t>(1, (m.bytes + job.frame_bytes - 1) / job.frame_bytes);
        const Time apart =
            static_cast<Time>(std::llround(static_cast<double>(job.frame_bytes) * model_.links[l].ps_per_byte));
        const auto [first, last] = window(m).send(frames, start, apart);
        // Between its bursts the link is free for others.
        start = first;
        sent = std::max(first + own, last + apart);
    }
    const Time done = std::max(end, sent);
    result_.link_bytes[l] += m.bytes;
    result_.link_busy[l] += own + (m.first ? model_.settings.overhead : 0);
    m.first = false;
    m.from = m.at;
    m.at = next;
    m.end = done + model_.links[l].latency;
    const Program &p = *m.state->program;
    const bool last = m.target >= 0 && p.nodes[m.target] == next;
    const bool stores = !last                           ? model_.settings.store_and_forward
                        : !model_.nodes[next].is_switch ? !(p.servers_stream && m.target >= p.workers)
                        : p.ops[m.target_op].aggregate  ? model_.settings.store_and_aggregate
                                                        : model_.settings.store_and_forward;
    if (last && job.request_share > 0) request_more(m);
    m.arrives *= 1 - model_.links[l].loss;
    if (last && m.windowed && !m.more && m.arrives < 1 && is_lost(m)) m.end += model_.settings.timeout;
    const Time when = stores ? m.end : start + model_.links[l].latency;
    events_.push(when, last ? delivered_event : arrived_event, m.state->tie(m.source, m.op, m.distance), id);
}

// Receivers of chunks let their source go on, with a short frame for every so many chunks.
void Links::request_more(const Message &m) {
    const Program &p = *m.state->program;
    const std::int32_t host = p.chunks_from[m.op];
    if (host < 0) return;
    const std::int32_t source = p.nodes[host], target = p.nodes[m.target];
    const double share = model_.jobs[m.state->job].request_share;
    const auto bytes = static_cast<std::uint64_t>(static_cast<double>(m.bytes) * share);
    if (source == target) {  // One host stands for all.
        occupy(model_.nodes[source].up, bytes);
        return occupy(model_.nodes[source].down, bytes);
    }
    on_the_way(target, source, [&](std::int32_t l) { occupy(l, bytes); });
}

void Links::occupy_results(const Program &p, std::int32_t piece, std::uint64_t bytes) {
    if (bytes == 0) return;
    for (const Carrying &each : p.sums[piece]) {
        const Op &op = p.ops[each.op];
        if (op.kind == Kind::send) {
            on_the_way(p.nodes[each.node], p.nodes[op.target], [&](std::int32_t l) { occupy(l, bytes); });
            continue;
        }
        std::set<std::int32_t> taken;  // a switch replicates: a link carries one copy
        for (std::int32_t i = 0; i < op.peer_count; i++)
            on_the_way(p.nodes[each.node], p.nodes[p.peers[op.peers + i].target], [&](std::int32_t l) {
                if (taken.insert(l).second) occupy(l, bytes);
            });
    }
}

void Links::occupy(std::int32_t l, std::uint64_t bytes) {
    const Time time = static_cast<Time>(std::llround(static_cast<double>(bytes) * model_.links[l].ps_per_byte));
    link_[l].free = std::max(link_[l].free, events_.now()) + time;
    result_.link_bytes[l] += bytes;
    result_.link_busy[l] += time;
}

void Links::arrive(std::uint32_t id) {
    if (messages_[id].target < 0)
        replicate(id);
    else
        send(id, messages_[id].end);
}

void Links::replicate(std::uint32_t id) {
    const Message whole = messages_[id];
    spare_.push_back(id);
    const Program &p = *whole.state->program;
    const Op &op = p.ops[whole.op];
    std::vector<std::int32_t> onward;
    for (std::int32_t i = 0; i < op.peer_count; i++) {
        const Peer peer = p.peers[op.peers + i];
        const std::int32_t target = p.nodes[peer.target], next = model_.toward(whole.at, target);
        if (next == target) {
            const std::uint32_t copy = message();
            messages_[copy] = whole;
            messages_[copy].target = peer.target;
            messages_[copy].target_op = peer.target_op;
            messages_[copy].distance = peer.distance;
            depart(copy, next == model_.nodes[whole.at].parent ? model_.nodes[whole.at].up : model_.nodes[next].down,
                   next, whole.end);
        } else if (next != whole.from && std::find(onward.begin(), onward.end(), next) == onward.end()) {
            onward.push_back(next);
        }
    }
    // Switches replicate chunks on their way up, so none come down again to where they are from.
    const std::int32_t host = model_.jobs[whole.state->job].request_share > 0 ? p.chunks_from[whole.op] : -1;
    const std::int32_t back = host < 0 ? -1 : model_.toward(whole.at, p.nodes[host]);
    for (const std::int32_t next : onward) {
        const std::uint32_t copy = message();
        messages_[copy] = whole;
        if (next == back) {
            messages_[copy].from = whole.at;
            messages_[copy].at = next;
            replicate(copy);
            continue;
        }
        depart(copy, next == model_.nodes[whole.at].parent ? model_.nodes[whole.at].up : model_.nodes[next].down, next,
               whole.end);
    }
}

void Links::wake(std::int32_t l) {
    LinkState &link = link_[l];
    link.woken = false;
    for (const std::int32_t line : std::exchange(link.requested, {})) hand_over(l, line);
    const bool express = !link.waiting.empty() && link.waiting.front().priority < 0;
    const bool took = !express && !link.turns.empty() && turn(l);
    if (!took && !link.waiting.empty()) {
        std::pop_heap(link.waiting.begin(), link.waiting.end(), goes_later);
        const Waiting next = link.waiting.back();
        link.waiting.pop_back();
        transmit(next.message, l, model_.nodes[messages_[next.message].at].parent, next.end);
    } else if (!took) {
        return;
    }
    if (link.waiting.empty() && link.turns.empty()) return;
    link.woken = true;
    events_.push(link.free, woken_event, 0, static_cast<std::uint32_t>(l));
}

}  // namespace netfold::simulation
