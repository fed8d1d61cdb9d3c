// Shared by both ends of a multicast stream: messages, which are cut into chunks, and packets to send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "block_float/block_float.h"
#include "net/pool.h"
#include "net/socket.h"
#include "net/stats.h"
#include "wire/header.h"
#include "wire/progress.h"

namespace netfold {

// A caller's bytes, to be sent or received into.
struct Message {
    std::uint8_t *data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t ticket = 0;
    std::uint64_t first = 0, end = 0;  // positions in the stream
};

// The host's socket, and the constant header fields of its packets.
struct Way {
    Socket &socket;
    Header header;
    Stats stats;
    std::shared_ptr<const CheckWords> check;

    std::size_t vector_bytes() const { return 4 * std::size_t{header.element_count}; }

    // The next packet to send: its header is filled in as far as known, its vector is not.
    Header begin(std::uint8_t operation, const Pool &pool, std::uint64_t position) const {
        Header begun = header;
        begun.operation = operation;
        begun.slot = static_cast<std::uint16_t>(pool.first_slot + position % static_cast<std::uint64_t>(pool.slots));
        begun.generation = static_cast<std::uint32_t>(position / static_cast<std::uint64_t>(pool.slots));
        return begun;
    }

    // Of as many words as the header says.
    std::uint32_t vector_part(const Header &of, const std::uint8_t *vector) const {
        return weigh(vector, of.element_count, ANY_WORD, *check).part;
    }
    std::uint32_t check_word(const Header &of, std::uint32_t part) const { return check->word(of, part, 0); }
    // By how much the check word of a packet is wrong.
    std::uint32_t off_by(const Header &of, const std::uint8_t *vector) const {
        return check->off_by(of, vector_part(of, vector));
    }

    // Past the switch: it is shorter than a packet of the program, which the switch answers in place. A receiver's is
    // urgent; with FLAG_AGAIN it asks a source how far that is. The answer is not: it must not overtake what it says
    // was sent.
    void tell(const sockaddr_in &end, const Pool &pool, const Progress &progress, bool urgent, std::uint8_t flags = 0) {
        std::uint8_t datagram[layout::HEADER_BYTES + 4 * PROGRESS_WORDS], *words = datagram + layout::HEADER_BYTES;
        Header told = begin(layout::OPERATION_ACKNOWLEDGEMENT, pool, 0);
        told.flags = flags;
        told.rank = progress.rank;
        told.element_count = PROGRESS_WORDS;
        write_progress(words, progress);
        told.check = check_word(told, vector_part(told, words));
        write_header(datagram, told);
        socket.send_to(end, datagram, sizeof datagram, urgent);
        count_sent(sizeof datagram);
    }

    void count_sent(std::size_t bytes) {
        stats.packets_sent++;
        stats.bytes_sent += bytes;
    }
};

}  // namespace netfold
