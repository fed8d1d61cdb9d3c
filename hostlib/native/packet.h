// The aggregation header on the wire, field by field, at the offsets that p4/common/protocol.p4 gives.
#pragma once

#include <cstdint>
#include <cstring>

#include "layout.h"

namespace netfold {

struct Header {
    std::uint8_t operation;
    std::uint16_t job, rank;
    std::uint32_t epoch, generation;
    std::uint16_t slot, element_count, exponent, flags;
    std::uint32_t next_exponent, check;
};

inline void put16(std::uint8_t *p, std::uint16_t v) { v = __builtin_bswap16(v); std::memcpy(p, &v, 2); }
inline void put32(std::uint8_t *p, std::uint32_t v) { v = __builtin_bswap32(v); std::memcpy(p, &v, 4); }
inline std::uint16_t get16(const std::uint8_t *p) { std::uint16_t v; std::memcpy(&v, p, 2); return __builtin_bswap16(v); }
inline std::uint32_t get32(const std::uint8_t *p) { std::uint32_t v; std::memcpy(&v, p, 4); return __builtin_bswap32(v); }

inline void write_header(std::uint8_t *p, const Header &h) {
    put16(p + layout::OFFSET_MAGIC, layout::NETFOLD_MAGIC);
    p[layout::OFFSET_VERSION] = layout::NETFOLD_VERSION;
    p[layout::OFFSET_OPERATION] = h.operation;
    put16(p + layout::OFFSET_JOB, h.job);
    put16(p + layout::OFFSET_RANK, h.rank);
    put32(p + layout::OFFSET_EPOCH, h.epoch);
    put32(p + layout::OFFSET_GENERATION, h.generation);
    put16(p + layout::OFFSET_SLOT, h.slot);
    put16(p + layout::OFFSET_ELEMENT_COUNT, h.element_count);
    put16(p + layout::OFFSET_EXPONENT, h.exponent);
    put16(p + layout::OFFSET_FLAGS, h.flags);
    put32(p + layout::OFFSET_NEXT_EXPONENT, h.next_exponent);
    put32(p + layout::OFFSET_CHECK, h.check);
}

// False unless this is a header of our magic and version.
inline bool read_header(const std::uint8_t *p, Header &h) {
    if (get16(p + layout::OFFSET_MAGIC) != layout::NETFOLD_MAGIC) return false;
    if (p[layout::OFFSET_VERSION] != layout::NETFOLD_VERSION) return false;
    h = {p[layout::OFFSET_OPERATION], get16(p + layout::OFFSET_JOB), get16(p + layout::OFFSET_RANK),
         get32(p + layout::OFFSET_EPOCH), get32(p + layout::OFFSET_GENERATION), get16(p + layout::OFFSET_SLOT),
         get16(p + layout::OFFSET_ELEMENT_COUNT), get16(p + layout::OFFSET_EXPONENT), get16(p + layout::OFFSET_FLAGS),
         get32(p + layout::OFFSET_NEXT_EXPONENT), get32(p + layout::OFFSET_CHECK)};
    return true;
}

// The header's part of the check word; a sum over n ranks holds it n times.
inline std::uint32_t position_check(const Header &h) {
    return layout::CHECK_SLOT * h.slot + layout::CHECK_GENERATION * h.generation
         + layout::CHECK_EXPONENT * h.exponent + layout::CHECK_EPOCH * h.epoch;
}

}  // namespace netfold
