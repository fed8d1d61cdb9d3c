#include "multicast/receiver.h"

#include <algorithm>
#include <cstring>

#include "net/clock.h"
#include "wire/progress.h"

namespace netfold {
namespace {

constexpr std::int64_t NEVER = INT64_MAX;

}  // namespace

Receiver::Receiver(const Pool &pool, std::uint16_t rank, const sockaddr_in &source, std::size_t vector_bytes)
    : pool_(pool),
      rank_(rank),
      source_(source),
      vector_bytes_(vector_bytes),
      slots_(static_cast<std::size_t>(pool.slots)),
      kept_(static_cast<std::size_t>(pool.slots) * vector_bytes),
      timeouts_(LONGEST_STREAM_TIMEOUT_NS) {}

void Receiver::submit(const Message &message, std::int64_t now, std::vector<std::uint64_t> &finished) {
    if (idle()) {
        probe_timeout_ns_ = timeouts_.first_ns(round_trip_);
        probe_due_ns_ = now + probe_timeout_ns_;
    }
    Message placed = message;
    placed.first = submitted_;
    placed.end = submitted_ += (message.bytes + vector_bytes_ - 1) / vector_bytes_;
    messages_.push_back(placed);
    for (std::uint64_t position = placed.first; position < std::min(placed.end, beyond_); position++)
        if (slot(position).here) deliver(position, kept_.data() + position % slots() * vector_bytes_);
    advance(finished);
}

bool Receiver::handle(Way &way, const Header &header, const std::uint8_t *vector, std::int64_t now,
                      std::vector<std::uint64_t> &finished) {
    const std::uint64_t index = static_cast<std::uint64_t>(header.slot - pool_.first_slot);
    const std::uint64_t position = next_ + (index + slots() - next_ % slots()) % slots();
    Slot &its = slot(position);
    if (its.here || header.generation != static_cast<std::uint32_t>(position / slots())) {
        way.stats.duplicates++;
        return false;
    }
    const std::uint32_t off_by = way.off_by(header, vector);
    if (off_by != 0 || header.exponent != 0 || header.next_exponent != 0) {
        way.stats.damaged++;  // Treated as lost.
        // A chunk that was damaged on its way to the switch is stored there, and every repetition is damaged, too.
        if (its.damage.notice(off_by, header.next_exponent)) way.stats.spoiled++;
        return false;
    }
    measure(position, its, now);
    notice_holes(position + 1, now);
    came_ns_ = now;
    its.here = true;
    its.damage.forget();
    const bool first = !its.asked;
    if (position < submitted_)
        deliver(position, vector);
    else
        std::memcpy(kept_.data() + index * vector_bytes_, vector, vector_bytes_);
    advance(finished);
    way.stats.chunks++;
    probe_timeout_ns_ = timeouts_.first_ns(round_trip_);
    probe_due_ns_ = now + probe_timeout_ns_;
    return first;
}

// What it has sent and has not come is lost, or is still on its way.
void Receiver::source_is_at(std::uint64_t position, std::int64_t now) {
    if (questions_ == 1) measured(now - questioned_ns_);
    questions_ = 0;
    if (position <= next_ + slots()) notice_holes(position, now);
}

void Receiver::deliver(std::uint64_t position, const std::uint8_t *vector) {
    const auto message = std::find_if(messages_.begin(), messages_.end(),
                                      [position](const Message &each) { return position < each.end; });
    const std::size_t at = (position - message->first) * vector_bytes_;
    std::memcpy(message->data + at, vector, std::min(vector_bytes_, message->bytes - at));
}

void Receiver::advance(std::vector<std::uint64_t> &finished) {
    while (next_ < submitted_ && slot(next_).here) slot(next_++) = Slot{};
    beyond_ = std::max(beyond_, next_);
    while (!messages_.empty() && messages_.front().end <= next_) {
        finished.push_back(messages_.front().ticket);
        messages_.pop_front();
    }
}

void Receiver::notice_holes(std::uint64_t end, std::int64_t now) {
    for (; beyond_ < end; beyond_++) {
        slot(beyond_).timeout_ns = timeouts_.first_ns(round_trip_);
        slot(beyond_).due_ns = now + round_trip_.reordering_ns();
    }
}

// Round trips: from a question to its answer; from a NACK to its chunk; and from the permission to send to the first
// chunk that it allowed, if part of that message had come by then. Otherwise the source may have had nothing to send.
void Receiver::measure(std::uint64_t position, const Slot &slot, std::int64_t now) {
    if (slot.asked_ns != 0) measured(now - slot.asked_ns);
    if (told_ns_ == 0 || position < allowed_) return;
    const auto message = std::find_if(messages_.begin(), messages_.end(),
                                      [position](const Message &each) { return position < each.end; });
    if (message != messages_.end() && message->first + slots() < allowed_ && position == allowed_ && !slot.asked)
        measured(now - told_ns_);
    told_ns_ = 0;
}

void Receiver::measured(std::int64_t sample_ns) {
    round_trip_.measure(std::max<std::int64_t>(sample_ns, 1));
    timeouts_.measured();
}

// ---- requests ------------------------------------------------------------------------------------------------------

bool Receiver::ask(Way &way, std::int64_t now) {
    if (next_ - told_ >= std::max<std::uint64_t>(slots() / 2, 1)) {
        if (told_ns_ == 0) {
            allowed_ = told_ + slots();
            told_ns_ = now;
        }
        way.tell(source_, pool_, {rank_, next_}, true);
        told_ = next_;
    }
    if (has_holes()) return ask_for_holes(way, now);
    if (!idle() && now >= probe_due_ns_) probe(way, now);
    return false;
}

bool Receiver::ask_for_holes(Way &way, std::int64_t now) {
    bool first = false, again = false;
    for (std::uint64_t position = next_; position < beyond_; position++) {
        Slot &its = slot(position);
        if (its.here || now < its.due_ns) continue;
        (its.asked ? again : first) = true;
        its.asked_ns = its.asked ? 0 : now;
        its.asked = true;
        its.due_ns = now + its.timeout_ns;
        its.timeout_ns = timeouts_.next_ns(round_trip_, its.timeout_ns);
        way.stats.retransmits++;
        nack(way, position);
    }
    if (again) timeouts_.back_off(round_trip_, now);
    return first;
}

// Nothing has arrived that indicates a loss. Either the last chunks or this receiver's permission to go on were lost,
// or the source has nothing to send yet. The source knows, and this datagram is small: while servers sum, their links
// are full of what they sum.
void Receiver::probe(Way &way, std::int64_t now) {
    way.tell(source_, pool_, {rank_, next_}, true, layout::FLAG_AGAIN);
    told_ = next_;
    told_ns_ = 0;
    questions_++;
    questioned_ns_ = now;
    probe_due_ns_ = now + probe_timeout_ns_;
    probe_timeout_ns_ = timeouts_.next_ns(round_trip_, probe_timeout_ns_);
    way.stats.retransmits++;
}

std::int64_t Receiver::due_ns() const {
    if (!has_holes()) return idle() ? NEVER : probe_due_ns_;
    std::int64_t due = NEVER;
    for (std::uint64_t position = next_; position < beyond_; position++)
        if (!slot(position).here) due = std::min(due, slot(position).due_ns);
    return due;
}

void Receiver::nack(Way &way, std::uint64_t position) {
    std::uint8_t *packet = way.socket.next(), *vector = packet + layout::HEADER_BYTES;
    Header header = way.begin(layout::OPERATION_NACK, pool_, position);
    header.rank = rank_;
    std::memset(vector, 0, vector_bytes_);
    write_progress(vector, {rank_, next_});
    header.check = way.check_word(header, way.vector_part(header, vector));
    write_header(packet, header);
    way.count_sent(layout::HEADER_BYTES + vector_bytes_);
}

}  // namespace netfold
