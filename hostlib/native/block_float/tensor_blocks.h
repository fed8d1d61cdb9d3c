// Whole tensors cut into blocks as the lanes do, so that the hosts can compute exactly what the switch would have
// summed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "block_float/block_float.h"

namespace netfold {

// How a tensor is cut: blocks of `elements`, distributed to `lanes` in contiguous parts of so many `slots`.
struct Cut {
    std::size_t count, elements, slots = 1, lanes = 1;

    std::size_t blocks() const { return (count + elements - 1) / elements; }
    std::size_t first(std::size_t lane) const { return lane * blocks() / lanes; }
    std::size_t size(std::size_t block) const {
        return count - block * elements < elements ? count - block * elements : elements;
    }
};

// The codes under which this rank would have its blocks sent, one per block; of int32, those of the blocks' magnitudes.
void own_codes(DType dtype, const void *x, const Cut &cut, int world_size, std::uint16_t *codes);

void quantise_blocks(DType dtype, const void *x, const Cut &cut, const std::uint16_t *codes, int world_size,
                     std::int32_t *q);

// Blocks whose `done` is set are not changed.
void dequantise_blocks(DType dtype, const std::int32_t *sum, const Cut &cut, const std::uint16_t *codes, int world_size,
                       bool average, const std::uint8_t *done, void *x);

}  // namespace netfold
