#include "multicast/multicaster.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "net/clock.h"
#include "retransmission/pacing.h"
#include "wire/progress.h"

namespace netfold {
namespace {

// How long a source waits for others whose messages are expected, at least.
constexpr std::int64_t PATIENCE_NS = 1 * MILLISECOND_NS;

}  // namespace

// All others wait for a chunk, and its source for what a receiver asks: neither need leave behind this host's own sums.
Multicaster::Multicaster(const std::string &address, std::uint16_t port)
    : socket_(open_socket(address, port)), way_{*socket_, {}, {}, nullptr} {}

// ---- called by other threads --------------------------------------------------------------------------------------

std::uint64_t Multicaster::configure(const End &fabric, const Header &header, std::uint16_t rank,
                                     const std::vector<StreamPlace> &streams, std::shared_ptr<const CheckWords> check) {
    const std::lock_guard life(life_);
    stop();
    way_.header = header;
    way_.check = std::move(check);
    // Other hosts wait for chunks and NACKs, and this host's sums and messages need not leave before them. A server
    // only sends: chunks that fill its link would keep back what it acknowledges and requests of the next tensors.
    socket_->overtake(
        std::any_of(streams.begin(), streams.end(), [](const StreamPlace &place) { return !place.source; }));
    // Receivers and sources say past the switch how far they are.
    std::vector<End> senders{fabric};
    for (const StreamPlace &place : streams) senders.insert(senders.end(), place.ends.begin(), place.ends.end());
    socket_->aim(fabric, layout::HEADER_BYTES + way_.vector_bytes(), senders);
    streams_.clear();
    const std::lock_guard lock(mutex_);
    sources_.clear();
    under_way_.clear();
    for (const StreamPlace &place : streams) {
        Stream stream;
        std::vector<sockaddr_in> ends;
        for (const End &end : place.ends) ends.push_back(resolve(end));
        if (place.source)
            stream.source = std::make_unique<Source>(place.pool, place.receivers, ends, way_.vector_bytes());
        else
            stream.receiver = std::make_unique<Receiver>(place.pool, rank, ends.front(), way_.vector_bytes());
        streams_.push_back(std::move(stream));
        sources_.push_back(place.source);
    }
    shown_ = {way_.stats, 0, std::vector<std::uint64_t>(streams_.size())};
    halted_ = quit_ = false;
    thread_ = std::thread([this] { run(); });
    return tickets_;
}

std::uint64_t Multicaster::send(std::size_t stream, const std::uint8_t *data, std::size_t bytes) {
    return ask(stream, true, const_cast<std::uint8_t *>(data), bytes);
}

std::uint64_t Multicaster::receive(std::size_t stream, std::uint8_t *data, std::size_t bytes) {
    return ask(stream, false, data, bytes);
}

std::uint64_t Multicaster::ask(std::size_t stream, bool source, std::uint8_t *data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (halted_) throw std::logic_error("halted: configure() makes a new life of all streams");
    if (stream >= sources_.size()) throw std::invalid_argument("there is no such stream");
    if (sources_[stream] != source)
        throw std::logic_error(source ? "this host is not the stream's source" : "this host is the stream's source");
    const std::uint64_t ticket = ++tickets_;
    if (bytes == 0) return ticket;
    under_way_.insert(ticket);
    asked_.push_back({stream, {data, bytes, ticket}});
    socket_->interrupt();
    return ticket;
}

bool Multicaster::wait(std::uint64_t ticket, double seconds) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, std::chrono::duration<double>(seconds),
                          [this, ticket] { return under_way_.count(ticket) == 0; });
}

std::optional<std::uint16_t> Multicaster::echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                               std::int64_t timeout_ns) {
    const std::lock_guard life(life_);
    stop();
    return socket_->echo(fabric, question, layout::OFFSET_RANK, timeout_ns);
}

void Multicaster::halt() {
    const std::lock_guard life(life_);
    stop();
}

void Multicaster::stop() {
    {
        const std::lock_guard lock(mutex_);
        halted_ = quit_ = true;
    }
    socket_->interrupt();
    if (thread_.joinable()) thread_.join();
    asked_.clear();
}

std::uint64_t Multicaster::granted(std::size_t stream) const {
    const std::lock_guard lock(mutex_);
    return stream < shown_.granted.size() ? shown_.granted[stream] : 0;
}

Stats Multicaster::stats() const {
    const std::lock_guard lock(mutex_);
    return shown_.stats;
}

std::uint64_t Multicaster::position() const {
    const std::lock_guard lock(mutex_);
    return shown_.position;
}

// ---- the thread --------------------------------------------------------------------------------------------------

void Multicaster::run() {
    while (!quit_) {
        take();
        keep_in_step();
        for (Stream &stream : streams_)
            if (stream.source) stream.source->send(way_, Socket::BATCH, finished_);
        const std::int64_t before = now_ns();
        for (Stream &stream : streams_)
            if (stream.receiver && stream.receiver->ask(way_, before)) lead_.lost(before, way_.stats.rtt_ns);
        way_.stats.refused += socket_->flush();
        show();
        const bool busy =
            std::any_of(streams_.begin(), streams_.end(), [](const Stream &each) { return !each.idle(); });
        if (busy && socket_->drained()) let_packets_gather(way_.stats.rtt_ns);
        const int n = socket_->receive(std::max<std::int64_t>(wake_ns() - now_ns(), 1));
        const std::int64_t now = now_ns();
        for (int i = 0; i < n; i++) handle(i, now);
        if (busy) way_.stats.busy_ns += static_cast<std::uint64_t>(now_ns() - before);
    }
}

void Multicaster::take() {
    const std::lock_guard lock(mutex_);
    const std::int64_t now = now_ns();
    for (const Asked &asked : asked_) {
        Stream &stream = streams_[asked.stream];
        if (stream.source)
            stream.source->submit(asked.message, now);
        else
            stream.receiver->submit(asked.message, now, finished_);
    }
    asked_.clear();
}

// A link to a receiver has chunks of all sources, and its queue treats them alike only as long as they send alike. A
// source that got ahead would leave its own host's link idle, since the others have less of it; and once it is through,
// the others cannot make up for that. So it goes on when the streams that arrive here have got on as far, to within
// half a window, or less of each where they are many. A stream that has stopped for a while holds nobody up: its
// receivers may wait for this one.
//
// Sources that begin have nothing yet to go by, and would all send a window at once.
void Multicaster::keep_in_step() {
    const std::int64_t now = now_ns();
    for (Stream &mine : streams_) {
        if (!mine.source) continue;
        const bool begins = !mine.source->idle() && now < begins_until_ns(*mine.source);
        std::size_t others = 0;
        for (Stream &other : streams_) {
            if (!other.receiver) continue;
            const bool arrives = !mine.source->idle() && now < other.receiver->arrives_until_ns();
            if (arrives && !other.together) {
                other.sent = mine.source->position();
                other.reached = other.receiver->reached();
            }
            other.together = arrives;
            others += other.is_awaited(begins);
        }
        std::uint64_t below = UINT64_MAX;
        for (const Stream &other : streams_) {
            if (!other.receiver || !other.is_awaited(begins)) continue;
            const auto half = static_cast<std::uint64_t>(other.pool().slots) / 2;
            const std::uint64_t lead = std::min(half, lead_.of_each(others));
            if (other.together)
                below = std::min(below, other.sent + (other.receiver->reached() - other.reached) + lead);
            else if (lead < half)
                below = std::min(below, mine.source->began_at() + lead);
        }
        mine.source->keep_below(below);
    }
}

std::int64_t Multicaster::begins_until_ns(const Source &source) const {
    return source.began_ns() + 2 * way_.stats.rtt_ns + PATIENCE_NS;
}

std::int64_t Multicaster::wake_ns() const {
    const std::int64_t now = now_ns();
    std::int64_t wake = now + LONGEST_WAIT_NS;
    const bool held = std::any_of(streams_.begin(), streams_.end(), [](const Stream &each) {
        return each.source && each.source->wants_to_send() && !each.source->may_send();
    });
    for (const Stream &stream : streams_) {
        if (stream.source && stream.source->may_send()) return now;
        if (stream.receiver) wake = std::min(wake, stream.receiver->due_ns());
        const std::int64_t until =
            stream.receiver ? stream.receiver->arrives_until_ns() : begins_until_ns(*stream.source);
        if (held && until > now) wake = std::min(wake, until);
    }
    return wake;
}

void Multicaster::handle(int i, std::int64_t now) {
    way_.stats.packets_received++;
    way_.stats.bytes_received += socket_->bytes(i);
    const std::uint8_t *packet = socket_->packet(i), *vector = packet + layout::HEADER_BYTES;
    const Header &ours = way_.header;
    Header header;
    const bool known = socket_->bytes(i) >= layout::HEADER_BYTES && read_header(packet, header)
                       && header.job == ours.job && header.epoch == ours.epoch;
    const bool acknowledges = known && header.operation == layout::OPERATION_ACKNOWLEDGEMENT;
    const std::size_t words = acknowledges ? PROGRESS_WORDS : ours.element_count;
    if (!known || header.element_count != words || socket_->bytes(i) != layout::HEADER_BYTES + 4 * words) {
        way_.stats.foreign++;
        return;
    }
    for (Stream &stream : streams_) {
        if (static_cast<unsigned>(header.slot) - stream.pool().first_slot >= static_cast<unsigned>(stream.pool().slots))
            continue;
        if (stream.receiver && header.operation == layout::OPERATION_CHUNK) {
            if (stream.receiver->handle(way_, header, vector, now, finished_)) lead_.came();
            return;
        }
        if (!acknowledges && (header.operation != layout::OPERATION_NACK || !stream.source)) continue;
        if (way_.off_by(header, vector) != 0)
            way_.stats.damaged++;
        else if (stream.source)
            stream.source->handle(way_, header, vector, now);
        else
            stream.receiver->source_is_at(read_progress(vector).low, now);
        return;
    }
    way_.stats.foreign++;
}

// Publish the state for callers, and wake those that wait for finished messages.
void Multicaster::show() {
    const bool finished = !finished_.empty();
    {
        const std::lock_guard lock(mutex_);
        shown_.position = 0;
        way_.stats.rtt_ns = 0;
        for (std::size_t i = 0; i < streams_.size(); i++) {
            const Stream &stream = streams_[i];
            shown_.position += stream.source ? stream.source->position() : stream.receiver->position();
            if (stream.source)
                shown_.granted[i] = stream.source->granted();
            else
                way_.stats.rtt_ns = std::max(way_.stats.rtt_ns, stream.receiver->round_trip_ns());
        }
        shown_.stats = way_.stats;
        for (const std::uint64_t ticket : finished_) under_way_.erase(ticket);
        finished_.clear();
    }
    if (finished) done_.notify_all();
}

}  // namespace netfold
