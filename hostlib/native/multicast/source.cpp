#include "multicast/source.h"

#include <algorithm>
#include <cstring>

#include "net/clock.h"
#include "wire/progress.h"

namespace netfold {
namespace {

constexpr std::int64_t TOGETHER_NS =
    20 * MILLISECOND_NS;  // the round trip is longer if receivers only request messages later

}  // namespace

Source::Source(const Pool &pool, const std::vector<std::uint16_t> &receivers, const std::vector<sockaddr_in> &ends,
               std::size_t vector_bytes)
    : pool_(pool),
      vector_bytes_(vector_bytes),
      kept_(static_cast<std::size_t>(pool.slots) * vector_bytes),
      sent_(static_cast<std::size_t>(pool.slots)) {
    for (std::size_t i = 0; i < receivers.size(); i++) receivers_[receivers[i]] = {0, ends[i]};
}

void Source::submit(const Message &message, std::int64_t now) {
    if (idle()) {
        began_at_ = submitted_;
        began_ns_ = now;
    }
    Message placed = message;
    placed.first = submitted_;
    placed.end = submitted_ += (message.bytes + vector_bytes_ - 1) / vector_bytes_;
    messages_.push_back(placed);
}

void Source::send(Way &way, int most, std::vector<std::uint64_t> &finished) {
    for (int count = 0; count < most && may_send(); count++) {
        const Message &message = messages_.front();
        const std::size_t at = (next_ - message.first) * vector_bytes_;
        const std::size_t size = std::min(vector_bytes_, message.bytes - at);
        std::uint8_t *vector = kept(next_);
        std::memcpy(vector, message.data + at, size);
        std::memset(vector + size, 0, vector_bytes_ - size);
        sent_[next_ % slots()] = {way.vector_part(way.header, vector), 0, false};
        transmit(way, next_++);
        way.stats.chunks++;
        if (next_ < message.end) continue;
        finished.push_back(message.ticket);
        messages_.pop_front();
    }
}

void Source::transmit(Way &way, std::uint64_t position) {
    Sent &sent = sent_[position % slots()];
    std::uint8_t *packet = way.socket.next();
    Header header = way.begin(layout::OPERATION_CHUNK, pool_, position);
    header.check = way.check_word(header, sent.vector_part);
    write_header(packet, header);
    std::memcpy(packet + layout::HEADER_BYTES, kept(position), vector_bytes_);
    sent.at_ns = now_ns();
    way.count_sent(layout::HEADER_BYTES + vector_bytes_);
}

void Source::handle(Way &way, const Header &header, const std::uint8_t *vector, std::int64_t now) {
    const Progress progress = read_progress(vector);
    const auto found = receivers_.find(progress.rank);
    if (found == receivers_.end() || progress.low > next_) {
        way.stats.foreign++;
        return;
    }
    grant(found->second, progress.low, now);
    if (header.operation != layout::OPERATION_NACK) {
        const bool asks = (header.flags & layout::FLAG_AGAIN) != 0;
        if (asks && progress.low < next_ && !is_recent(sent_[progress.low % slots()], now))
            way.tell(found->second.end, pool_, {progress.rank, next_}, false);
        return;
    }
    // The last position of this slot among those that were sent.
    const std::uint64_t index = static_cast<std::uint64_t>(header.slot - pool_.first_slot);
    if (next_ <= index) return;
    const std::uint64_t position = next_ - 1 - (next_ - 1 - index) % slots();
    if (position < progress.low || static_cast<std::uint32_t>(position / slots()) != header.generation) return;
    Sent &sent = sent_[index];
    if (is_recent(sent, now)) return;
    sent.again = true;
    way.stats.retransmits++;
    transmit(way, position);
}

// It may still be on its way, and other receivers that lack it ask at about the same time.
bool Source::is_recent(const Sent &sent, std::int64_t now) const {
    return now - sent.at_ns < std::min(round_trip_.reordering_ns(), TOGETHER_NS);
}

void Source::grant(Listener &receiver, std::uint64_t low, std::int64_t now) {
    if (low <= receiver.low) return;
    receiver.low = low;
    const Sent &last = sent_[(low - 1) % slots()];
    if (low - 1 + slots() >= next_ && !last.again) round_trip_.measure(std::max<std::int64_t>(now - last.at_ns, 1));
    granted_ = std::min_element(receivers_.begin(), receivers_.end(), [](const auto &a, const auto &b) {
                   return a.second.low < b.second.low;
               })->second.low;
}

}  // namespace netfold
