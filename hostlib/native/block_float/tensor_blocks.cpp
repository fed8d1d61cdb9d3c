#include "block_float/tensor_blocks.h"

#include <algorithm>

namespace netfold {

void own_codes(DType dtype, const void *x, const Cut &cut, const int *openings, std::uint16_t *codes) {
    const auto *bytes = static_cast<const std::uint8_t *>(x);
    const std::size_t each = cut.elements * bytes_of(dtype);
    for (std::size_t lane = 0; lane < cut.lanes; lane++) {
        const std::size_t from = cut.first(lane), to = cut.first(lane + 1);
        if (from == to) continue;
        const std::size_t opening = std::min(to, from + cut.slots);
        const std::size_t values = std::min(opening * cut.elements, cut.count) - from * cut.elements;
        const int known = openings[lane];
        std::fill(codes + from, codes + opening,
                  known >= 0 ? static_cast<std::uint16_t>(known) : block_code(dtype, bytes + from * each, values));
        for (std::size_t block = opening; block < to; block++)
            codes[block] = block_code(dtype, bytes + block * each, cut.size(block));
    }
}

void quantise_blocks(DType dtype, const void *x, const Cut &cut, const std::uint16_t *codes, int world_size,
                     std::int32_t *q) {
    const auto *bytes = static_cast<const std::uint8_t *>(x);
    for (std::size_t block = 0; block < cut.blocks(); block++)
        quantise(dtype, bytes + block * cut.elements * bytes_of(dtype), q + block * cut.elements, cut.size(block),
                 codes[block], world_size);
}

void dequantise_blocks(DType dtype, const std::int32_t *sum, const Cut &cut, const std::uint16_t *codes, int world_size,
                       bool average, const std::uint8_t *done, void *x) {
    auto *bytes = static_cast<std::uint8_t *>(x);
    for (std::size_t block = 0; block < cut.blocks(); block++)
        if (!done[block])
            dequantise(dtype, sum + block * cut.elements, bytes + block * cut.elements * bytes_of(dtype),
                       cut.size(block), codes[block], world_size, average);
}

}  // namespace netfold
