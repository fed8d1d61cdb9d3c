// The endpoint of reduce-scatters for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <utility>

#include "aggregation/scatter.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {
namespace {

using Ends = std::vector<std::vector<std::pair<std::string, std::uint16_t>>>;

// As PyEngine (engine.cpp): the arrays must outlive the threads' work on them.
struct PyScatter {
    std::map<std::uint64_t, std::pair<Values, Values>> held;
    Scatter scatter;

    PyScatter(const std::string &address, int rank, int world_size) : scatter(address, rank, world_size) {}

    void configure(const Place &place, const std::vector<std::vector<End>> &ends) {
        std::uint64_t forgotten = 0;
        {
            nb::gil_scoped_release free;
            forgotten = scatter.configure(place, ends);
        }
        held.erase(held.begin(), held.upper_bound(forgotten));
    }

    std::uint64_t submit(Values x, Values sums, bool average) {
        const DType dtype = dtype_of(x);
        if (average && dtype == DType::int32) throw std::invalid_argument("int32 tensors can be summed, not averaged");
        require(dtype_of(sums) == (dtype == DType::int32 ? DType::int32 : DType::float32)
                    && x.size() == sums.size() * scatter.ranks(),
                "submit: sums take a shard, as int32 of int32 and else as float32");
        std::uint64_t ticket = 0;
        {
            nb::gil_scoped_release free;
            ticket = scatter.submit(dtype, x.data(), sums.size(), average, sums.data());
        }
        held.emplace(ticket, std::pair(std::move(x), std::move(sums)));
        return ticket;
    }

    bool wait(std::uint64_t ticket, double seconds) {
        bool done = false;
        try {
            nb::gil_scoped_release free;
            done = scatter.wait(ticket, seconds);
        } catch (const SumOverflow &) {
            held.erase(ticket);
            throw;
        } catch (const TensorsDiffer &) {
            halt();  // Other lanes may still read it.
            held.erase(ticket);
            throw;
        }
        if (done) held.erase(ticket);
        return done;
    }

    void halt() {
        nb::gil_scoped_release free;
        scatter.halt();
    }
};

}  // namespace

void bind_scatter(nb::module_ &m) {
    nb::class_<PyScatter>(m, "Scatter",
                          "UDP sockets, each with a thread: reduce-scatters in which the switch sums what the others "
                          "send of a shard, and its owner receives that. Arrays as Engine's.")
        .def(nb::init<const std::string &, int, int>(), "address"_a, "rank"_a, "world_size"_a)
        .def_prop_ro("address", [](const PyScatter &self) { return self.scatter.address(); })
        .def_prop_ro(
            "ports", [](const PyScatter &self) { return self.scatter.ports(); }, "By pool.")
        .def_prop_ro("position", [](const PyScatter &self) { return self.scatter.position(); })
        .def(
            "configure",
            [](PyScatter &self, const std::string &fabric_address, std::uint16_t fabric_port, std::uint16_t job,
               std::uint32_t epoch, std::uint16_t rank, int world_size,
               const std::vector<std::pair<std::uint16_t, int>> &pools, int elements,
               std::shared_ptr<const CheckWords> check, const Ends &ends, int window) {
                Place place{{fabric_address, fabric_port},
                            job,
                            rank,
                            epoch,
                            world_size,
                            elements,
                            window,
                            std::move(check),
                            {}};
                for (const auto &[first, slots] : pools) place.pools.push_back({first, slots, {}});
                std::vector<std::vector<End>> everybody;
                for (const auto &each : ends) {
                    auto &here = everybody.emplace_back();
                    for (const auto &[address, port] : each) here.push_back({address, port});
                }
                self.configure(place, everybody);
            },
            "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "rank"_a, "world_size"_a, "pools"_a, "elements"_a,
            "check"_a, "ends"_a, "window"_a = 0,
            "A new stream. pools: (first slot, slots) by owner; ends: by rank, (address, port) for each pool; window: "
            "as Engine.configure, of each pool.")
        .def(
            "echo",
            [](PyScatter &self, std::size_t pool, const std::string &address, std::uint16_t port,
               const nb::bytes &question, double seconds) {
                const std::vector<std::uint8_t> packet = packet_of(question);
                nb::gil_scoped_release free;
                return self.scatter.echo(pool, {address, port}, packet, nanoseconds(seconds));
            },
            "pool"_a, "fabric_address"_a, "fabric_port"_a, "question"_a, "seconds"_a, "As Engine.echo.")
        .def("submit", &PyScatter::submit, "array"_a.noconvert(), "sums"_a.noconvert(), "average"_a,
             nb::sig("def submit(self, array: object, sums: object, average: bool) -> int"),
             "Begin to sum an array, a shard for each rank; `sums` gets the others' sum of this rank's. The ticket.")
        .def("wait", &PyScatter::wait, "ticket"_a, "seconds"_a,
             "Whether the others have what they need of this rank, and it has their sum. Raises as Engine.wait.")
        .def("halt", &PyScatter::halt, "Stop sending and receiving, until configure().")
        .def(
            "silent", [](const PyScatter &self) { return self.scatter.silent(); },
            "Seconds in which nothing came though something is outstanding.")
        .def(
            "cancel", [](PyScatter &self) { self.scatter.cancel(); }, "Make every wait() raise Cancelled.")
        .def(
            "stats", [](const PyScatter &self) { return counted(self.scatter.stats()); },
            nb::sig("def stats(self) -> dict[str, int]"));
}

}  // namespace netfold
