// Block-wise quantisation of whole tensors, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "block_float/tensor_blocks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {

void bind_tensor_blocks(nb::module_ &m) {
    m.def(
        "own_codes",
        [](Values x, std::size_t elements, std::size_t slots, std::size_t lanes, int world_size) {
            require(elements > 0 && slots > 0 && lanes > 0, "own_codes: elements, slots and lanes are at least 1");
            require(world_size >= 1 && world_size <= 512, "own_codes: world size must be in 1..512");
            const Cut cut{x.size(), elements, slots, lanes};
            auto codes = new_vector<std::uint16_t>(cut.blocks());
            own_codes(dtype_of(x), x.data(), cut, world_size, codes.data());
            return codes;
        },
        "x"_a.noconvert(), "elements"_a, "slots"_a, "lanes"_a, "world_size"_a,
        nb::sig("def own_codes(x: object, elements: int, slots: int, lanes: int, world_size: int) -> "
                "numpy.typing.NDArray[numpy.uint16]"),
        "The code under which this rank would have each block sent, uint16 (blocks,).");
    m.def(
        "quantise_blocks",
        [](Values x, std::size_t elements, Vector<const std::uint16_t> codes, int world_size) {
            require(elements > 0, "quantise_blocks: elements are at least 1");
            const Cut cut{x.size(), elements};
            require(codes.size() == cut.blocks(), "quantise_blocks: a code per block");
            auto q = new_vector<std::int32_t>(x.size());
            quantise_blocks(dtype_of(x), x.data(), cut, codes.data(), world_size, q.data());
            return q;
        },
        "x"_a.noconvert(), "elements"_a, "codes"_a, "world_size"_a,
        nb::sig("def quantise_blocks(x: object, elements: int, codes: numpy.typing.NDArray[numpy.uint16], "
                "world_size: int) -> numpy.typing.NDArray[numpy.int32]"),
        "int32 (N,) under the agreed codes.");
    m.def(
        "dequantise_blocks",
        [](Vector<const std::int32_t> sum, Values x, std::size_t elements, Vector<const std::uint16_t> codes,
           int world_size, bool average, Vector<const std::uint8_t> done) {
            require(elements > 0, "dequantise_blocks: elements are at least 1");
            const Cut cut{x.size(), elements};
            require(sum.size() == x.size() && codes.size() == cut.blocks() && done.size() == cut.blocks(),
                    "dequantise_blocks: a sum per value, and a code and a done per block");
            dequantise_blocks(dtype_of(x), sum.data(), cut, codes.data(), world_size, average, done.data(), x.data());
        },
        "sum"_a, "x"_a.noconvert(), "elements"_a, "codes"_a, "world_size"_a, "average"_a, "done"_a,
        nb::sig("def dequantise_blocks(sum: numpy.typing.NDArray[numpy.int32], x: object, elements: int, "
                "codes: numpy.typing.NDArray[numpy.uint16], world_size: int, average: bool, "
                "done: numpy.typing.NDArray[numpy.uint8]) -> None"),
        "The way back, into x; blocks that are done stay as they are.");
}

}  // namespace netfold
