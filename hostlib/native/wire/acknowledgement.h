// What an owner tells a rank of the sums of its shard that have arrived: a header, whose element_count is the number of
// entries, and the entries. Source: docs/protocol.md, "Shards and their owners".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "wire/header.h"

namespace netfold {

// One position. A prologue's exponent says whether the ranks sum the same kind of tensor. A prologue of levels has an
// acknowledgement of its own: behind the entry follow the levels, a byte each (openings.h), and the header's exponent
// is their number.
struct Acknowledged {
    std::uint32_t generation = 0, next_exponent = 0;
    std::uint16_t slot = 0, exponent = 0;
};

inline constexpr std::size_t ENTRY_WORDS = 3, ENTRY_BYTES = 4 * ENTRY_WORDS, MOST_ENTRIES = 16;
inline constexpr std::uint16_t KIND_DIFFERS = 1;
// In an acknowledgement's header: since the one before, a sum came that a queue on the way had marked (ECN).
inline constexpr std::uint16_t FLAG_MARKED = 2;

// Entries of one datagram: their words have the check word's weights of as many elements.
constexpr std::size_t most_entries(std::size_t elements) { return std::min(elements / ENTRY_WORDS, MOST_ENTRIES); }

// After how many sums of so many slots an owner acknowledges them.
constexpr std::size_t sums_told_together(std::size_t slots, std::size_t elements) {
    return std::min(std::max<std::size_t>(slots / 4, 1), most_entries(elements));
}

// Words behind an acknowledgement's header.
inline std::size_t acknowledgement_words(const Header &header) {
    return ENTRY_WORDS * header.element_count + (std::size_t{header.exponent} + 3) / 4;
}

inline void write_entry(std::uint8_t *p, const Acknowledged &entry) {
    put32(p, entry.generation);
    put32(p + 4, entry.next_exponent);
    put16(p + 8, entry.slot);
    put16(p + 10, entry.exponent);
}

inline Acknowledged read_entry(const std::uint8_t *p) { return {get32(p), get32(p + 4), get16(p + 8), get16(p + 10)}; }

}  // namespace netfold
