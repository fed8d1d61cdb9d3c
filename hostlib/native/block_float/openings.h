// How the scales of a tensor's first blocks are agreed on: of those, no earlier packet can tell the code. Prologues
// count, for each block, how many ranks have which level. Must equal hostlib/protocol/openings.py bit for bit. Source:
// docs/protocol.md, "Prologues".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "block_float/block_float.h"

namespace netfold {

// Words of a prologue that say what is summed: random below the largest that n ranks can send, so that equal ones have
// a sum that no others have, but for one chance in 2^60 / n^2.
constexpr std::size_t KIND_WORDS = 2;
constexpr std::size_t MOST_ELEMENTS = 2048;  // of a packet

// A level stands for LEVEL_CODES codes of a block, and is sent as the largest. Blocks of smaller values have the
// lowest: its scale is fine enough for denormals. The highest is that of blocks with NaN or Inf.
constexpr int LEVELS = 65, LEVEL_CODES = 4;
constexpr int NO_LEVEL = -1;  // of a block of zeros

int level_of(std::uint16_t code);
std::uint16_t code_of(int level);

// The prologues of a lane's part of a tensor.
struct Openings {
    std::size_t blocks = 0;     // whose codes are agreed on by prologues
    std::size_t each = 1;       // of them in one prologue, but for the last
    std::size_t prologues = 0;  // at least one, unless the part is empty
    bool by_levels = false;  // else a prologue has one code, as the next exponent: of its block, or of an int32 tensor

    Openings() = default;
    Openings(DType type, std::size_t chunks, std::size_t slots, std::size_t elements, int world_size);

    std::size_t first(std::size_t prologue) const { return prologue * each; }
    std::size_t size(std::size_t prologue) const {
        return blocks - first(prologue) < each ? blocks - first(prologue) : each;
    }
    // Under which code a block is sent whose own one is this.
    std::uint16_t rounded(std::uint16_t code) const { return by_levels ? code_of(level_of(code)) : code; }
};

// Words of a prologue's vector, in the host's order, that count this rank in the level of each block.
void count_levels(const std::uint16_t *codes, std::size_t blocks, int world_size, std::uint32_t *words);

// The highest level of each block in which a prologue's sum, a vector in network order, counts somebody.
void highest_levels(const std::uint8_t *vector, std::size_t blocks, int world_size, std::int8_t *levels);

// How many words each block has.
std::size_t level_words(int world_size);

}  // namespace netfold
