// Sums in shared memory for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/bindings.h"
#include "shared_memory/shared_sum.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {
namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Way = SharedSum::Way;

void begin(SharedSum &self, const Values &x, Way way, std::uint32_t note) {
    const DType type = dtype_of(x);
    require(type == DType::float32 || type == DType::int32, "float32 and int32 are added in shared memory");
    require(way != Way::average || type == DType::float32, "int32 tensors can be summed, not averaged");
    const SharedSum::Type words = type == DType::float32 ? SharedSum::Type::float32 : SharedSum::Type::int32;
    self.begin({x.size(), words, way}, x.data(), note);
}

}  // namespace

void bind_shared_sum(nb::module_ &m) {
    nb::class_<SharedSum>(m, "SharedSum",
                          "Sums of one host's ranks in memory that they share, zeros at first and aligned to 64 bytes. "
                          "Arrays (numpy or torch, 1-D, contiguous; float32, int32) are summed in the ranks' order.")
        .def_static("bytes", &SharedSum::bytes, "ranks"_a, "part_bytes"_a, "That the memory must have.")
        .def(
            "__init__",
            [](SharedSum *self, const Memory &memory, int rank, int ranks, std::size_t part_bytes, bool spins) {
                require(ranks >= 1 && memory.size() >= SharedSum::bytes(ranks, part_bytes), "the memory is too small");
                new (self) SharedSum(memory.data(), rank, ranks, part_bytes, spins);
            },
            "memory"_a, "rank"_a, "ranks"_a, "part_bytes"_a, "spins"_a = true, nb::keep_alive<1, 2>())
        .def(
            "begin",
            [](SharedSum &self, const Values &x, bool average) {
                begin(self, x, average ? Way::average : Way::sum, 0);
            },
            "array"_a, "average"_a = false,
            "Begin to sum an array, in place; it must stay where it is until that is done.",
            nb::sig("def begin(self, array: object, average: bool = False) -> None"))
        .def(
            "begin_reduce", [](SharedSum &self, const Values &x) { begin(self, x, Way::reduce, 0); }, "array"_a,
            "Likewise, but rank 0 alone has the sum; what the others have then is not defined.",
            nb::sig("def begin_reduce(self, array: object) -> None"))
        .def(
            "begin_broadcast",
            [](SharedSum &self, const Values &x, std::uint32_t note) { begin(self, x, Way::broadcast, note); },
            "array"_a, "note"_a = 0, "Likewise; all have rank 0's values then, and its note.",
            nb::sig("def begin_broadcast(self, array: object, note: int = 0) -> None"))
        .def_prop_ro("note", &SharedSum::note, "Rank 0's, of the last array that is done.")
        .def(
            "go_on",
            [](SharedSum &self, double seconds) {
                const std::int64_t patience = nanoseconds(seconds);
                nb::gil_scoped_release free;
                return self.go_on(patience);
            },
            "seconds"_a, "Whether it is done; False after so long without another rank's progress.")
        .def(
            "differing",
            [](const SharedSum &self) {
                std::vector<std::tuple<std::uint64_t, bool, bool>> out;
                for (const SharedSum::Told &told : self.differing())
                    out.emplace_back(told.count, told.type == SharedSum::Type::int32, told.way == Way::average);
                return out;
            },
            "Elements, whether they are int32, and whether they are averaged, of each rank, if the ranks sum different "
            "tensors. Nothing can be summed any more then.")
        .def_prop_ro("steps", &SharedSum::steps, "How often the ranks have met.")
        .def("missing", &SharedSum::missing, "Ranks that this one waits for.")
        .def("departed", &SharedSum::departed, "Ranks that have left.")
        .def("leave", &SharedSum::leave, "Tell the others that this rank sums no more.")
        .def("beat", &SharedSum::beat, "Tell the others that this rank makes them wait, and will come.")
        .def("beats", &SharedSum::beats, "How often each rank has told that.")
        .def_prop_ro("summing_ns", &SharedSum::summing_ns, "Time until sums were there, since the start.")
        .def_prop_ro("reading_ns", &SharedSum::reading_ns, "Time from sums to arrays.");
}

}  // namespace netfold
