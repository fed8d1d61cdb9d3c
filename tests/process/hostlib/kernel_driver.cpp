// Runs the kernels on the blocks of standard input, for test_kernel.py: every buffer is a heap block of just its size
// and, but for one byte, unaligned, so that the sanitizers see each byte too far.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "block_float/block_float.h"

using namespace netfold;

namespace {

struct Request {
    std::uint8_t dtype, average;
    std::uint16_t code;
    std::int32_t world_size;
    std::uint32_t count, elements, prime;
};

// Weights of the elements alone: no header is looked at here.
CheckWords check_words(std::uint32_t prime, const std::uint32_t *weights, std::size_t elements) {
    std::vector<std::uint32_t> codes(CheckWords::CODES);
    for (std::uint32_t i = 0; i < codes.size(); i++) codes[i] = i << CheckWords::CODE_SHIFT;
    return {prime, {0, 0, 0, 0}, {weights, weights + elements}, {0}, std::move(codes)};
}

struct Block {
    std::size_t bytes;
    std::unique_ptr<std::uint8_t[]> room;
    explicit Block(std::size_t n) : bytes(n), room(new std::uint8_t[n + 1]) {}
    std::uint8_t *data() const { return room.get() + 1; }
};

void put(const void *data, std::size_t bytes) {
    if (std::fwrite(data, 1, bytes, stdout) != bytes) std::exit(2);
}

}  // namespace

int main() {
    Request r;
    while (std::fread(&r, sizeof r, 1, stdin) == 1) {
        const auto type = static_cast<DType>(r.dtype);
        const Block x(bytes_of(type) * r.count), back(x.bytes), wire(4 * r.elements);
        const auto total = std::make_unique<std::int32_t[]>(r.count), q = std::make_unique<std::int32_t[]>(r.count);
        if (std::fread(x.data(), 1, x.bytes, stdin) != x.bytes) return 1;
        if (std::fread(total.get(), 4, r.count, stdin) != r.count) return 1;
        const auto weights = std::make_unique<std::uint32_t[]>(r.elements);
        if (std::fread(weights.get(), 4, r.elements, stdin) != r.elements) return 1;
        const CheckWords words = check_words(r.prime, weights.get(), r.elements);
        const std::uint16_t code = block_code(type, x.data(), r.count);
        put(&code, sizeof code);
        const std::uint32_t part = pack(type, x.data(), r.count, wire.data(), r.elements, r.code, r.world_size, words);
        put(&part, sizeof part);
        put(wire.data(), wire.bytes);
        Weighed weighed = weigh(wire.data(), r.elements, ANY_WORD, words);
        put(&weighed.part, sizeof weighed.part);
        weighed = weigh(wire.data(), r.elements, limit_of(type, r.code, r.world_size), words);
        put(&weighed.possible, 1);
        unpack(type, wire.data(), back.data(), r.count, r.code, r.world_size, r.average);
        put(back.data(), back.bytes);
        quantise(type, x.data(), q.get(), r.count, r.code, r.world_size);
        put(q.get(), 4 * r.count);
        dequantise(type, total.get(), back.data(), r.count, r.code, r.world_size, r.average);
        put(back.data(), back.bytes);
    }
}
