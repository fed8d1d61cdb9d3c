// Check words for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <vector>

#include "bindings/bindings.h"
#include "wire/check_words.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {

void bind_check_words(nb::module_ &m) {
    nb::class_<CheckWords>(m, "CheckWords", "How the members of a job make and test check words; docs/protocol.md.")
        .def(
            "__init__",
            [](CheckWords *self, std::uint32_t prime, const std::array<std::uint32_t, 4> &fields,
               std::vector<std::uint32_t> elements, std::vector<std::uint32_t> ranks,
               std::vector<std::uint32_t> codes) {
                const auto [slot, generation, exponent, epoch] = fields;
                new (self) CheckWords(prime, {slot, generation, exponent, epoch}, std::move(elements), std::move(ranks),
                                      std::move(codes));
            },
            "prime"_a, "fields"_a, "elements"_a, "ranks"_a, "codes"_a,
            "Weights of the fields slot, generation, exponent and epoch and of each element, a term for each rank, and "
            "a "
            "word for each code.")
        .def("next_word", &CheckWords::next_word, "code"_a, "A code as next_exponent carries it.")
        .def("code", &CheckWords::code, "next_word"_a, "Its inverse; None for a word that no rank sends.");
}

}  // namespace netfold
