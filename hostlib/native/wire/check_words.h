// The check words of one job, as its members make and test them. Must equal hostlib/protocol/check_words.py. Source:
// docs/protocol.md, "Check word" and "The next exponent".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "wire/header.h"

namespace netfold {

// sum over i of weight_i * (element_i + offset), not reduced: `whole` mod 2^64, and the sum of the products' high
// halves, from which the exact sum follows. For at most 2^20 elements.
struct Products {
    std::uint64_t whole = 0, high = 0;
};

// A weight for each element, and one more word that may be read.
struct Weights {
    const std::uint32_t *of;
    bool pairs_fit;  // 64 bits hold the sum of two products
};

// Remainders by a fixed divisor of 32 bits, by multiplication: a division takes as long as four.
class Divisor {
public:
    explicit Divisor(std::uint32_t by) : by_(by), reciprocal_(UINT64_MAX / by) {}

    std::uint32_t value() const { return by_; }
    std::uint32_t remainder(std::uint64_t x) const {
        const auto quotient = static_cast<std::uint64_t>(static_cast<Wide>(x) * reciprocal_ >> 64);  // or one too small
        const std::uint64_t left = x - quotient * by_;
        return static_cast<std::uint32_t>(left < by_ ? left : left - by_);
    }

private:
    __extension__ using Wide = unsigned __int128;

    std::uint32_t by_;
    std::uint64_t reciprocal_;
};

class CheckWords {
public:
    static constexpr std::size_t CODES = 512;
    static constexpr int CODE_SHIFT = 23;

    // The weights of the header's fields that are covered.
    struct Fields {
        std::uint32_t slot, generation, exponent, epoch;
    };

    // elements: a weight for each; ranks: a term for each; codes: the words of next exponents. Throws
    // std::invalid_argument for numbers that are not a job's.
    CheckWords(std::uint32_t prime, Fields fields, std::vector<std::uint32_t> elements,
               std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> codes);

    std::size_t ranks() const { return ranks_.size(); }
    std::size_t elements() const { return elements_.size() - 1; }
    Weights weights() const { return {elements_.data(), pairs_fit_}; }

    // The part of the first `count` elements, from their products under an offset.
    std::uint32_t vector_part(const Products &products, std::size_t count, std::uint32_t offset) const;
    // The word of one rank's packet. Chunks and NACKs are rank 0's, of one.
    std::uint32_t word(const Header &header, std::uint32_t vector_part, std::size_t rank) const {
        return prime_.remainder(std::uint64_t{vector_part} + header_part(header) + ranks_[rank]);
    }
    // By how much the sum of all ranks' words misses what its header and elements demand; 0 if it is right.
    std::uint32_t off_by(const Header &header, std::uint32_t vector_part) const;

    // A code as `next_exponent` carries it. The words are ordered as the codes are.
    std::uint32_t next_word(std::uint16_t code) const { return codes_[index(code)]; }
    // Its inverse; none for a word that no rank sends.
    std::optional<std::uint16_t> code(std::uint32_t next_word) const;

private:
    static std::size_t index(std::uint16_t code) { return code < CODES - 1 ? code : CODES - 1; }
    std::uint32_t header_part(const Header &header) const;

    Divisor prime_;
    Fields fields_;
    bool pairs_fit_;
    std::vector<std::uint32_t> elements_;  // and a zero
    std::vector<std::uint32_t> ranks_, codes_;
    std::uint64_t total_, all_ranks_;  // of the elements' weights, and of the ranks' terms
};

}  // namespace netfold
