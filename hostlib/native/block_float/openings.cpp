#include "block_float/openings.h"

#include <algorithm>
#include <bit>

#include "wire/byte_order.h"
#include "wire/layout.h"

namespace netfold {
namespace {

constexpr int SUM_BITS = 30;                               // of a word that any sum may have
constexpr int HIGHEST_CODE = layout::EXPONENT_BIAS + 128;  // of the largest floats
constexpr int SPECIAL_LEVEL = LEVELS - 1;

int count_bits(int world_size) {
    return std::max(static_cast<int>(std::bit_width(static_cast<unsigned>(world_size))), 1);
}
int levels_per_word(int world_size) { return SUM_BITS / count_bits(world_size); }

}  // namespace

int level_of(std::uint16_t code) {
    if (code == layout::EXPONENT_ZERO) return NO_LEVEL;
    if (code == layout::EXPONENT_SPECIAL) return SPECIAL_LEVEL;
    return std::max(SPECIAL_LEVEL - 1 - std::max(HIGHEST_CODE - code, 0) / LEVEL_CODES, 0);
}

std::uint16_t code_of(int level) {
    if (level == NO_LEVEL) return layout::EXPONENT_ZERO;
    if (level == SPECIAL_LEVEL) return layout::EXPONENT_SPECIAL;
    return static_cast<std::uint16_t>(HIGHEST_CODE - (SPECIAL_LEVEL - 1 - level) * LEVEL_CODES);
}

std::size_t level_words(int world_size) {
    const int each = levels_per_word(world_size);
    return static_cast<std::size_t>((LEVELS + each - 1) / each);
}

Openings::Openings(DType type, std::size_t chunks, std::size_t slots, std::size_t elements, int world_size)
    : blocks(std::min(chunks, slots)) {
    const std::size_t room = elements > KIND_WORDS ? (elements - KIND_WORDS) / level_words(world_size) : 0;
    by_levels = type != DType::int32 && blocks > 1 && room > 1;
    each = type == DType::int32 ? std::max<std::size_t>(blocks, 1) : by_levels ? room : 1;
    prologues = (blocks + each - 1) / each;
}

void count_levels(const std::uint16_t *codes, std::size_t blocks, int world_size, std::uint32_t *words) {
    const int each = levels_per_word(world_size), bits = count_bits(world_size);
    const std::size_t words_of_block = level_words(world_size);
    std::fill_n(words, blocks * words_of_block, 0);
    for (std::size_t block = 0; block < blocks; block++) {
        const int level = level_of(codes[block]);
        if (level == NO_LEVEL) continue;
        words[block * words_of_block + static_cast<std::size_t>(level / each)] = std::uint32_t{1}
                                                                                 << level % each * bits;
    }
}

void highest_levels(const std::uint8_t *vector, std::size_t blocks, int world_size, std::int8_t *levels) {
    const int each = levels_per_word(world_size), bits = count_bits(world_size);
    const std::size_t words_of_block = level_words(world_size);
    const std::uint8_t *words = vector + 4 * KIND_WORDS;
    for (std::size_t block = 0; block < blocks; block++, words += 4 * words_of_block) {
        levels[block] = NO_LEVEL;
        for (std::size_t word = words_of_block; word-- > 0;) {
            const std::uint32_t counts = get32(words + 4 * word);
            if (counts == 0) continue;
            const int level = static_cast<int>(word) * each + (static_cast<int>(std::bit_width(counts)) - 1) / bits;
            levels[block] = static_cast<std::int8_t>(std::min(level, LEVELS - 1));
            break;
        }
    }
}

}  // namespace netfold
