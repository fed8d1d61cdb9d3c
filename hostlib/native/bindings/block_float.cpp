// Block floating point for Python: numpy arrays and torch CPU tensors, by dtype name.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings/bindings.h"
#include "block_float/block_float.h"
#include "block_float/kernels.h"
#include "wire/layout.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {
namespace {

struct Kind {
    const char *name;
    DType type;
    nb::dlpack::dtype_code code;
};

constexpr Kind KINDS[] = {
    {"float32", DType::float32, nb::dlpack::dtype_code::Float},
    {"float16", DType::float16, nb::dlpack::dtype_code::Float},
    {"bfloat16", DType::bfloat16, nb::dlpack::dtype_code::Bfloat},
    {"int32", DType::int32, nb::dlpack::dtype_code::Int},
};

const Kind &kind_of(const std::string &name) {
    for (const Kind &kind : KINDS)
        if (name == kind.name) return kind;
    throw std::invalid_argument("dtype must be float32, float16, bfloat16 or int32, not " + name);
}

// A one-dimensional contiguous array of the caller's; the caller's reference keeps it alive.
struct Array {
    void *data;
    std::size_t size;
};

template <class... Flags>
Array array_of(nb::handle object, const std::string &name, nb::dlpack::dtype_code code, std::size_t bytes,
               const std::string &wanted) {
    nb::ndarray<Flags...> array;
    const bool writable = sizeof...(Flags) == 0;
    require(nb::try_cast(object, array, false) && array.device_type() == nb::device::cpu::value,
            name + " must be a " + (writable ? "writable " : "") + "numpy array or torch CPU tensor");
    require(array.ndim() == 1 && (array.shape(0) < 2 || array.stride(0) == 1),
            name + " must be one-dimensional and contiguous");
    // numpy has no bfloat16: half types may come as the uint16 of their bits.
    const nb::dlpack::dtype type = array.dtype();
    const bool fits = type.code == static_cast<std::uint8_t>(code)
                      || (bytes == 2 && type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt));
    require(fits && array.itemsize() == bytes, name + " must hold " + wanted);
    return {const_cast<void *>(static_cast<const void *>(array.data())), array.shape(0)};
}

Array values(nb::handle object, const Kind &kind) {
    return array_of<nb::ro>(object, "x", kind.code, bytes_of(kind.type), kind.name);
}

Array writable_values(nb::handle object, const Kind &kind) {
    return array_of<>(object, "x", kind.code, bytes_of(kind.type), kind.name);
}

constexpr auto BYTE = nb::dlpack::dtype_code::UInt;
constexpr auto WORD = nb::dlpack::dtype_code::Int;

std::size_t words_of(const Array &wire) {
    require(wire.size % 4 == 0, "wire must hold 4 bytes per element");
    return wire.size / 4;
}

void require_weights(const CheckWords &check, std::size_t elements) {
    require(elements <= check.elements(), "check words must have a weight for each element");
}

// Preconditions that the engine guarantees before it calls a kernel.
void check_scale(const Kind &kind, std::uint16_t code, int world_size) {
    require(world_size >= 1 && world_size <= 512, "world_size must be in 1..512");
    require(kind.type == DType::int32 || code == layout::EXPONENT_ZERO || code == layout::EXPONENT_SPECIAL
                || (code >= layout::EXPONENT_BIAS - 148 && code <= layout::EXPONENT_BIAS + 128),
            "code must be 0, 52..328 or 65535");
}

std::uint16_t bound_block_code(const std::string &dtype, nb::handle x) {
    const Kind &kind = kind_of(dtype);
    const Array from = values(x, kind);
    nb::gil_scoped_release free;
    return block_code(kind.type, from.data, from.size);
}

std::uint32_t bound_pack(const std::string &dtype, nb::handle x, nb::handle wire, std::uint16_t code, int world_size,
                         const CheckWords &check) {
    const Kind &kind = kind_of(dtype);
    check_scale(kind, code, world_size);
    const Array from = values(x, kind), to = array_of<>(wire, "wire", BYTE, 1, "uint8");
    const std::size_t elements = words_of(to);
    require(from.size <= elements, "wire must have room for the values of x, 4 bytes each");
    require_weights(check, elements);
    nb::gil_scoped_release free;
    return pack(kind.type, from.data, from.size, static_cast<std::uint8_t *>(to.data), elements, code, world_size,
                check);
}

nb::tuple bound_weigh(nb::handle wire, std::uint32_t magnitude, const CheckWords &check) {
    const Array from = array_of<nb::ro>(wire, "wire", BYTE, 1, "uint8");
    const std::size_t elements = words_of(from);
    require_weights(check, elements);
    require(magnitude <= ANY_WORD.magnitude, "magnitude must be in 0..2^31");
    const Weighed weighed = weigh(static_cast<const std::uint8_t *>(from.data), elements, {magnitude}, check);
    return nb::make_tuple(weighed.part, weighed.possible);
}

bool bound_possible(const std::string &dtype, nb::handle wire, std::uint16_t code, int world_size,
                    const CheckWords &check) {
    const Kind &kind = kind_of(dtype);
    check_scale(kind, code, world_size);
    const Array from = array_of<nb::ro>(wire, "wire", BYTE, 1, "uint8");
    const std::size_t elements = words_of(from);
    require_weights(check, elements);
    const Limit limit = limit_of(kind.type, code, world_size);
    return weigh(static_cast<const std::uint8_t *>(from.data), elements, limit, check).possible;
}

void bound_unpack(const std::string &dtype, nb::handle wire, nb::handle x, std::uint16_t code, int world_size,
                  bool average) {
    const Kind &kind = kind_of(dtype);
    check_scale(kind, code, world_size);
    require(!average || kind.type != DType::int32, "int32 tensors can be summed, not averaged");
    const Array from = array_of<nb::ro>(wire, "wire", BYTE, 1, "uint8"), to = writable_values(x, kind);
    require(to.size <= words_of(from), "wire must hold at least the values of x, 4 bytes each");
    nb::gil_scoped_release free;
    unpack(kind.type, static_cast<const std::uint8_t *>(from.data), to.data, to.size, code, world_size, average);
}

void bound_quantise(const std::string &dtype, nb::handle x, nb::handle q, std::uint16_t code, int world_size) {
    const Kind &kind = kind_of(dtype);
    check_scale(kind, code, world_size);
    const Array from = values(x, kind), to = array_of<>(q, "q", WORD, 4, "int32");
    require(from.size == to.size, "x and q must have the same size");
    nb::gil_scoped_release free;
    quantise(kind.type, from.data, static_cast<std::int32_t *>(to.data), from.size, code, world_size);
}

void bound_dequantise(const std::string &dtype, nb::handle sum, nb::handle x, std::uint16_t code, int world_size,
                      bool average) {
    const Kind &kind = kind_of(dtype);
    check_scale(kind, code, world_size);
    require(!average || kind.type != DType::int32, "int32 tensors can be summed, not averaged");
    const Array from = array_of<nb::ro>(sum, "sum", WORD, 4, "int32"), to = writable_values(x, kind);
    require(from.size == to.size, "sum and x must have the same size");
    nb::gil_scoped_release free;
    dequantise(kind.type, static_cast<const std::int32_t *>(from.data), to.data, from.size, code, world_size, average);
}

// --- the engine's passes over a whole tensor without a network, for hostlib/bench/kernels.py: consecutive packets in a
// ring buffer

struct Pass {
    Array tensor, codes, ring;
    const Kind &kind;
    std::size_t elements, stride, packets;

    Pass(const std::string &dtype, nb::handle x, nb::handle agreed, nb::handle buffers, std::size_t per_packet,
         int world_size)
        : tensor(writable_values(x, kind_of(dtype))),
          codes(array_of<>(agreed, "codes", nb::dlpack::dtype_code::UInt, 2, "uint16")),
          ring(array_of<>(buffers, "ring", BYTE, 1, "uint8")),
          kind(kind_of(dtype)),
          elements(per_packet),
          stride(layout::HEADER_BYTES + 4 * elements),
          packets(ring.size / stride) {
        require(elements > 0 && packets > 0, "ring must hold at least one packet of at least one element");
        require(codes.size == (tensor.size + elements - 1) / elements, "codes must hold one code per packet of x");
        check_scale(kind, layout::EXPONENT_ZERO, world_size);
    }

    std::uint8_t *values(std::size_t chunk) const {
        return static_cast<std::uint8_t *>(tensor.data) + chunk * elements * bytes_of(kind.type);
    }
    std::size_t size(std::size_t chunk) const { return std::min(elements, tensor.size - chunk * elements); }
    std::uint8_t *wire(std::size_t chunk) const {
        return static_cast<std::uint8_t *>(ring.data) + chunk % packets * stride + layout::HEADER_BYTES;
    }
    std::uint16_t &code(std::size_t chunk) const { return static_cast<std::uint16_t *>(codes.data)[chunk]; }
};

std::uint32_t pack_pass(const std::string &dtype, nb::handle x, nb::handle codes, nb::handle ring, std::size_t elements,
                        int world_size, std::size_t ahead, const CheckWords &check) {
    const Pass pass(dtype, x, codes, ring, elements, world_size);
    require_weights(check, elements);
    nb::gil_scoped_release free;
    // int32 has one code for the whole tensor, which must be scanned before the first packet.
    const bool whole = pass.kind.type == DType::int32;
    const std::size_t chunks = pass.codes.size;
    const auto coded = [&](std::size_t i) { pass.code(i) = block_code(pass.kind.type, pass.values(i), pass.size(i)); };
    for (std::size_t i = 0; i < (whole ? chunks : std::min(ahead, chunks)); i++) coded(i);
    std::uint32_t parts = 0;
    for (std::size_t i = 0; i < chunks; i++) {
        if (!whole && i + ahead < chunks) coded(i + ahead);
        parts +=
            pack(pass.kind.type, pass.values(i), pass.size(i), pass.wire(i), elements, pass.code(i), world_size, check);
    }
    return parts;
}

std::uint32_t unpack_pass(const std::string &dtype, nb::handle ring, nb::handle x, nb::handle codes,
                          std::size_t elements, int world_size, bool average, const CheckWords &check) {
    const Pass pass(dtype, x, codes, ring, elements, world_size);
    require_weights(check, elements);
    nb::gil_scoped_release free;
    std::uint32_t parts = 0;
    for (std::size_t i = 0; i < pass.codes.size; i++) {
        const Limit limit = limit_of(pass.kind.type, pass.code(i), world_size);
        parts += weigh(pass.wire(i), elements, limit, check).part;
        unpack(pass.kind.type, pass.wire(i), pass.values(i), pass.size(i), pass.code(i), world_size, average);
    }
    return parts;
}

std::uint32_t weigh_pass(nb::handle ring, std::size_t packets, std::size_t elements, const CheckWords &check) {
    const Array from = array_of<nb::ro>(ring, "ring", BYTE, 1, "uint8");
    const std::size_t stride = layout::HEADER_BYTES + 4 * elements, held = from.size / stride;
    require(held > 0, "ring must hold at least one packet");
    require_weights(check, elements);
    nb::gil_scoped_release free;
    const auto *first = static_cast<const std::uint8_t *>(from.data) + layout::HEADER_BYTES;
    std::uint32_t parts = 0;
    for (std::size_t i = 0; i < packets; i++)
        parts += weigh(first + i % held * stride, elements, {LARGEST_SUM}, check).part;
    return parts;
}

}  // namespace

void bind_blocks(nb::module_ &m) {
    m.def("kernels_name", &kernels_name, "For which CPUs the loops that run here are compiled.");
    m.def("block_code", &bound_block_code, "dtype"_a, "x"_a);
    m.def("may_overflow", &may_overflow, "code"_a, "world_size"_a);
    m.def("pack", &bound_pack, "dtype"_a, "x"_a, "wire"_a, "code"_a, "world_size"_a, "check"_a);
    m.def("weigh", &bound_weigh, "wire"_a, "magnitude"_a, "check"_a,
          nb::sig("def weigh(wire: object, magnitude: int, check: CheckWords) -> tuple[int, bool]"),
          "The vector's part of the check word, and whether no element exceeds the magnitude.");
    m.def("possible", &bound_possible, "dtype"_a, "wire"_a, "code"_a, "world_size"_a, "check"_a,
          "Whether these can be a sum's elements.");
    m.def("unpack", &bound_unpack, "dtype"_a, "wire"_a, "x"_a, "code"_a, "world_size"_a, "average"_a);
    m.def("quantise", &bound_quantise, "dtype"_a, "x"_a, "q"_a, "code"_a, "world_size"_a);
    m.def("dequantise", &bound_dequantise, "dtype"_a, "sum"_a, "x"_a, "code"_a, "world_size"_a, "average"_a);
    m.def("pack_pass", &pack_pass, "dtype"_a, "x"_a, "codes"_a, "ring"_a, "elements"_a, "world_size"_a, "ahead"_a,
          "check"_a);
    m.def("weigh_pass", &weigh_pass, "ring"_a, "packets"_a, "elements"_a, "check"_a);
    m.def("unpack_pass", &unpack_pass, "dtype"_a, "ring"_a, "x"_a, "codes"_a, "elements"_a, "world_size"_a, "average"_a,
          "check"_a);
}

}  // namespace netfold
