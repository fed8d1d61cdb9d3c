#include "aggregation/server.h"

#include <cstring>
#include <utility>

#include "block_float/block_float.h"
#include "block_float/kernels.h"
#include "net/ecn.h"
#include "retransmission/pacing.h"

namespace netfold {

Server::Server(const std::string &address, std::uint16_t port) : socket_(open_socket(address, port)) {}

void Server::configure(const End &fabric, const Header &header, const Pool &pool, int world_size,
                       const std::vector<End> &workers, std::shared_ptr<const CheckWords> check) {
    const std::lock_guard life(life_);
    stop();
    header_ = header;
    pool_ = pool;
    world_size_ = world_size;
    check_ = std::move(check);
    bytes_ = layout::HEADER_BYTES + 4 * std::size_t{header.element_count};
    workers_.clear();
    for (const End &end : workers) workers_.push_back(resolve(end));
    answered_.assign(static_cast<std::size_t>(pool.slots), -1);
    socket_->aim(fabric, bytes_);
    socket_->set_ecn(ecn::CAPABLE);
    repeats_mark_ = false;
    quit_ = false;
    thread_ = std::thread([this] { run(); });
}

std::optional<std::uint16_t> Server::echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                          std::int64_t timeout_ns) {
    const std::lock_guard life(life_);
    stop();
    return socket_->echo(fabric, question, layout::OFFSET_RANK, timeout_ns);
}

void Server::halt() {
    const std::lock_guard life(life_);
    stop();
}

void Server::stop() {
    quit_ = true;
    socket_->interrupt();
    if (thread_.joinable()) thread_.join();
}

Stats Server::stats() const {
    const std::lock_guard lock(mutex_);
    return shown_;
}

void Server::run() {
    while (!quit_) {
        const int n = socket_->receive(LONGEST_WAIT_NS);
        for (int i = 0; i < n; i++) answer(i);
        if (!workers_.empty()) send_to_all();
        stats_.refused += socket_->flush();
        const std::lock_guard lock(mutex_);
        shown_ = stats_;
    }
}

void Server::answer(int i) {
    stats_.packets_received++;
    stats_.bytes_received += socket_->bytes(i);
    Header header;
    if (!is_sum(i, header)) {
        stats_.foreign++;
        return;
    }
    const std::uint8_t *packet = socket_->packet(i);
    if (!is_whole(header, packet + layout::HEADER_BYTES)) {
        stats_.damaged++;  // Treated as lost: the workers ask again.
        return;
    }
    if (socket_->marked(i)) stats_.marked++;
    repeat_mark(socket_->marked(i));
    if (!workers_.empty()) {
        answer_workers(header, packet);
        return;
    }
    put(header, packet);
    count_sent(1);
}

bool Server::is_sum(int i, Header &header) const {
    return socket_->bytes(i) == bytes_ && read_header(socket_->packet(i), header)
           && header.operation == layout::OPERATION_SUM && header.job == header_.job && header.epoch == header_.epoch
           && header.element_count == header_.element_count
           && static_cast<unsigned>(header.slot) - pool_.first_slot < answered_.size();
}

// Which type is summed shows in no packet, but int32 tensors have the code of magnitude 1. Prologues have that of
// blocks of zeros.
bool Server::is_whole(const Header &header, const std::uint8_t *vector) const {
    const bool maybe_int32 = header.exponent == layout::EXPONENT_BIAS;
    const bool maybe_prologue = header.exponent == layout::EXPONENT_ZERO;
    const Limit limit = maybe_int32      ? Limit{INT32_MAX}
                        : maybe_prologue ? Limit{LARGEST_SUM}
                                         : limit_of(DType::float32, header.exponent, world_size_);
    const Weighed weighed = weigh(vector, header.element_count, limit, *check_);
    return check_->off_by(header, weighed.part) == 0 && weighed.possible
           && check_->code(header.next_exponent).has_value();
}

// A repeated sum names the rank that asked for it; for a leaf's ranks that is unknown. A slot's next sum is complete
// only once every worker has the last one, so an older sum was delayed on its way and can be dropped.
void Server::answer_workers(const Header &header, const std::uint8_t *packet) {
    std::int64_t &answered = answered_[static_cast<std::size_t>(header.slot - pool_.first_slot)];
    const auto ahead = static_cast<std::int32_t>(header.generation - static_cast<std::uint32_t>(answered));
    if (answered >= 0 && ahead < 0) {
        stats_.duplicates++;
        return;
    }
    const bool again = answered >= 0 && ahead == 0;
    answered = header.generation;
    if (!again || header.rank >= workers_.size()) {
        put(header, packet);
        if (socket_->full()) send_to_all();
        return;
    }
    send_to_all();
    put(header, packet);
    socket_->copy_to(workers_[header.rank]);
    socket_->drop();
    stats_.retransmits++;
    count_sent(1);
}

void Server::send_to_all() {
    for (const sockaddr_in &worker : workers_) {
        socket_->copy_to(worker);
        count_sent(static_cast<std::size_t>(socket_->queued()));
    }
    socket_->drop();
}

// A mark on a sum is one on a contribution, and ranks only see marks on results: so the result of a marked sum leaves
// marked. Those of one batch have the same bits.
void Server::repeat_mark(bool marked) {
    if (marked == std::exchange(repeats_mark_, marked)) return;
    if (!workers_.empty()) send_to_all();
    stats_.refused += socket_->flush();
    socket_->set_ecn(marked ? ecn::MARKED : ecn::CAPABLE);
}

// The sum is the result: a server's processing leaves the integers unchanged.
void Server::put(const Header &sum, const std::uint8_t *packet) {
    Header result = sum;
    result.operation = layout::OPERATION_RESULT;
    result.rank = layout::RANK_ALL;
    result.flags = 0;
    std::uint8_t *out = socket_->next();
    write_header(out, result);
    std::memcpy(out + layout::HEADER_BYTES, packet + layout::HEADER_BYTES, bytes_ - layout::HEADER_BYTES);
}

void Server::count_sent(std::size_t packets) {
    stats_.packets_sent += packets;
    stats_.bytes_sent += packets * bytes_;
}

}  // namespace netfold
