// A NACK's vector: its sender, and the lowest position that it lacks. For positions not sent yet, the source takes that
// as permission to go on.
#pragma once

#include <cstdint>

#include "wire/header.h"

namespace netfold {

struct Nack {
    std::uint16_t rank = 0;  // the worker's own; the header's changes from switch to switch
    std::uint64_t low = 0;   // it has everything before
};

inline constexpr std::size_t NACK_WORDS = 3;

inline void write_nack(std::uint8_t *vector, const Nack &nack) {
    put32(vector, nack.rank);
    put32(vector + 4, static_cast<std::uint32_t>(nack.low >> 32));
    put32(vector + 8, static_cast<std::uint32_t>(nack.low));
}

inline Nack read_nack(const std::uint8_t *vector) {
    return {static_cast<std::uint16_t>(get32(vector)),
            static_cast<std::uint64_t>(get32(vector + 4)) << 32 | get32(vector + 8)};
}

}  // namespace netfold
