#include "block_float/tensor_blocks.h"

#include <algorithm>

#include "block_float/openings.h"

namespace netfold {

void own_codes(DType dtype, const void *x, const Cut &cut, int world_size, std::uint16_t *codes) {
    const auto *bytes = static_cast<const std::uint8_t *>(x);
    for (std::size_t block = 0; block < cut.blocks(); block++)
        codes[block] = block_code(dtype, bytes + block * cut.elements * bytes_of(dtype), cut.size(block));
    if (dtype == DType::int32) return;
    for (std::size_t lane = 0; lane < cut.lanes; lane++) {
        std::uint16_t *part = codes + cut.first(lane);
        const Openings openings(dtype, cut.first(lane + 1) - cut.first(lane), cut.slots, cut.elements, world_size);
        std::transform(part, part + openings.blocks, part, [&](std::uint16_t code) { return openings.rounded(code); });
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
