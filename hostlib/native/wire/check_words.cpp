#include "wire/check_words.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "wire/layout.h"

namespace netfold {

namespace {

std::uint64_t total_of(const std::vector<std::uint32_t> &numbers, std::size_t count) {
    return std::accumulate(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(count), std::uint64_t{0});
}

}  // namespace

CheckWords::CheckWords(std::uint32_t prime, Fields fields, std::vector<std::uint32_t> elements,
                       std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> codes)
    : prime_(std::max<std::uint32_t>(prime, 2)),
      fields_(fields),
      pairs_fit_(prime <= std::uint32_t{1} << 31),
      elements_(std::move(elements)),
      ranks_(std::move(ranks)),
      codes_(std::move(codes)),
      total_(total_of(elements_, elements_.size())),
      all_ranks_(total_of(ranks_, ranks_.size())) {
    const auto too_large = [prime](std::uint32_t number) { return number >= prime; };
    if (std::any_of(elements_.begin(), elements_.end(), too_large)
        || std::any_of(ranks_.begin(), ranks_.end(), too_large) || too_large(fields.slot)
        || too_large(fields.generation) || too_large(fields.exponent) || too_large(fields.epoch))
        throw std::invalid_argument("every weight must be below the prime");
    if (ranks_.empty() || prime > UINT32_MAX / ranks_.size())
        throw std::invalid_argument("as many words as there are ranks must not exceed 32 bits");
    if (codes_.size() != CODES) throw std::invalid_argument("512 words for the codes of next exponents");
    for (std::size_t i = 0; i < CODES; i++)
        if (codes_[i] >> CODE_SHIFT != i) throw std::invalid_argument("a code's word must begin with the code");
    elements_.push_back(0);
}

std::uint32_t CheckWords::vector_part(const Products &products, std::size_t count, std::uint32_t offset) const {
    const std::uint64_t total = count == elements() ? total_ : total_of(elements_, count);
    const std::uint64_t low = products.whole - (products.high << 32);
    const std::uint64_t high = std::uint64_t{prime_.remainder(products.high)} << 32;
    const std::uint64_t sum = std::uint64_t{prime_.remainder(high)} + prime_.remainder(low);
    const std::uint32_t too_much = prime_.remainder(std::uint64_t{prime_.remainder(total)} * offset);
    return prime_.remainder(sum + prime_.value() - too_much);
}

std::uint32_t CheckWords::header_part(const Header &header) const {
    const std::uint64_t large = std::uint64_t{prime_.remainder(std::uint64_t{fields_.generation} * header.generation)}
                                + prime_.remainder(std::uint64_t{fields_.epoch} * header.epoch);
    const std::uint64_t small =
        std::uint64_t{fields_.slot} * header.slot + std::uint64_t{fields_.exponent} * header.exponent;
    return prime_.remainder(large + small);
}

std::uint32_t CheckWords::off_by(const Header &header, std::uint32_t vector_part) const {
    const std::uint64_t wanted = std::uint64_t{header_part(header)} * ranks_.size() + vector_part + all_ranks_;
    return prime_.remainder(std::uint64_t{header.check} + prime_.value() - prime_.remainder(wanted));
}

std::optional<std::uint16_t> CheckWords::code(std::uint32_t next_word) const {
    const std::size_t index = next_word >> CODE_SHIFT;
    if (codes_[index] != next_word) return std::nullopt;
    return index == CODES - 1 ? layout::EXPONENT_SPECIAL : static_cast<std::uint16_t>(index);
}

}  // namespace netfold
