// What the engines need of a switch, in a thread of the same process: it sums, multicasts, and loses packets.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/socket.h"
#include "wire/header.h"

// Of one job with one block of slots per port of a host. What it knows of hosts it learns from what they send.
class ToySwitch {
public:
    // lose_every: of all packets that come, one; 0 for none.
    ToySwitch(int world_size, unsigned lose_every) : world_size_(world_size), lose_every_(lose_every) {
        fd_ = ::socket(AF_INET, SOCK_DGRAM, 0);
        if (fd_ < 0) throw std::runtime_error("socket");
        sockaddr_in here = netfold::resolve({"127.0.0.1", 0});
        const timeval look{0, 20000};
        const int bytes = 8 << 20;
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
        socklen_t size = sizeof here;
        if (::bind(fd_, reinterpret_cast<sockaddr *>(&here), size) != 0) throw std::runtime_error("bind");
        ::getsockname(fd_, reinterpret_cast<sockaddr *>(&here), &size);
        end_ = {"127.0.0.1", ntohs(here.sin_port)};
        thread_ = std::thread([this] { run(); });
    }
    ~ToySwitch() {
        quit_ = true;
        thread_.join();
        ::close(fd_);
    }
    ToySwitch(const ToySwitch &) = delete;
    ToySwitch &operator=(const ToySwitch &) = delete;

    netfold::End end() const { return end_; }
    std::uint64_t seen() const { return seen_; }

    // Each owner has as many slots: the others' sums in them go to it.
    void send_shards_to(const std::vector<netfold::End> &owners, int slots) {
        const std::lock_guard lock(mutex_);
        slots_of_owner_ = slots;
        for (const netfold::End &each : owners) owners_.push_back(netfold::resolve(each));
    }
    // Sums go to this server; chunks to these receivers, their NACKs to the source.
    void send_sums_to(const netfold::End &server) {
        const std::lock_guard lock(mutex_);
        server_ = netfold::resolve(server);
    }
    void multicast(const netfold::End &source, const std::vector<netfold::End> &receivers) {
        const std::lock_guard lock(mutex_);
        source_ = netfold::resolve(source);
        for (const netfold::End &each : receivers) receivers_.push_back(netfold::resolve(each));
    }

private:
    using Packet = std::vector<std::uint8_t>;
    struct Slot {
        netfold::Header sum;
        std::vector<bool> ranks;
        std::vector<std::uint32_t> words;
        int missing = 0;
        bool done = false;
    };

    void run() {
        Packet packet(1 << 16);
        while (!quit_) {
            sockaddr_in from{};
            socklen_t size = sizeof from;
            const auto bytes =
                ::recvfrom(fd_, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr *>(&from), &size);
            netfold::Header header;
            if (bytes < 0 || !netfold::read_header(packet.data(), header)) continue;
            seen_++;
            if (lose_every_ != 0 && seen_ % lose_every_ == 0) continue;
            const std::lock_guard lock(mutex_);
            handle({packet.begin(), packet.begin() + bytes}, header, from);
        }
    }

    void handle(const Packet &packet, const netfold::Header &header, const sockaddr_in &from) {
        switch (header.operation) {
        case netfold::layout::OPERATION_CONTRIBUTION: contribution(packet, header, from); break;
        case netfold::layout::OPERATION_RESULT: to_ranks(packet, header.slot); break;
        case netfold::layout::OPERATION_CHUNK:
            for (const sockaddr_in &each : receivers_) send(packet, each);
            break;
        default: send(packet, source_); break;
        }
    }

    void contribution(const Packet &packet, const netfold::Header &header, const sockaddr_in &from) {
        ranks_[{header.slot, header.rank}] = from;
        Slot &slot = slots_[{header.epoch, header.slot}];
        const bool newer = static_cast<std::int32_t>(header.generation - slot.sum.generation) > 0;
        if (slot.ranks.empty() || newer) {
            slot = {header, std::vector<bool>(static_cast<std::size_t>(world_size_)),
                    std::vector<std::uint32_t>(header.element_count), owners_.empty() ? world_size_ : world_size_ - 1,
                    false};
            slot.sum.check = slot.sum.next_exponent = 0;
        } else if (header.generation != slot.sum.generation) {
            return;
        }
        const sockaddr_in above = owner(header.slot);
        if (slot.done) {
            slot.sum.rank = header.rank;  // who asks
            return send(result(slot, above), above.sin_port != 0 ? above : from);
        }
        if (slot.ranks[header.rank]) return;
        slot.ranks[header.rank] = true;
        slot.sum.check += header.check;
        slot.sum.next_exponent = std::max(slot.sum.next_exponent, header.next_exponent);
        for (std::size_t i = 0; i < slot.words.size(); i++)
            slot.words[i] += netfold::get32(packet.data() + netfold::layout::HEADER_BYTES + 4 * i);
        if (--slot.missing > 0) return;
        slot.done = true;
        if (above.sin_port != 0)
            send(result(slot, above), above);
        else
            to_ranks(result(slot, above), header.slot);
    }

    sockaddr_in owner(int slot) const {
        return owners_.empty() ? server_ : owners_[static_cast<std::size_t>(slot / slots_of_owner_)];
    }

    Packet result(const Slot &slot, const sockaddr_in &above) const {
        Packet out(netfold::layout::HEADER_BYTES + 4 * slot.words.size());
        netfold::Header header = slot.sum;
        header.operation = above.sin_port != 0 ? netfold::layout::OPERATION_SUM : netfold::layout::OPERATION_RESULT;
        netfold::write_header(out.data(), header);
        for (std::size_t i = 0; i < slot.words.size(); i++)
            netfold::put32(out.data() + netfold::layout::HEADER_BYTES + 4 * i, slot.words[i]);
        return out;
    }

    void to_ranks(const Packet &packet, std::uint16_t slot) {
        for (int rank = 0; rank < world_size_; rank++) {
            const auto found = ranks_.find({slot, static_cast<std::uint16_t>(rank)});
            if (found != ranks_.end()) send(packet, found->second);
        }
    }

    void send(const Packet &packet, const sockaddr_in &to) {
        ::sendto(fd_, packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr *>(&to), sizeof to);
    }

    std::mutex mutex_;
    int world_size_;
    unsigned lose_every_;
    int fd_;
    netfold::End end_;
    sockaddr_in server_{}, source_{};
    std::vector<sockaddr_in> receivers_, owners_;
    int slots_of_owner_ = 0;
    std::map<std::pair<std::uint16_t, std::uint16_t>, sockaddr_in> ranks_;  // by slot and rank
    std::map<std::pair<std::uint32_t, std::uint16_t>, Slot> slots_;         // by epoch and slot
    std::atomic<std::uint64_t> seen_{0};
    std::atomic<bool> quit_{false};
    std::thread thread_;
};
