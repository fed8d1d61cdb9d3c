// The engine for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <utility>

#include "aggregation/engine.h"
#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {
namespace {

using Ends = std::vector<std::pair<std::string, std::uint16_t>>;

constexpr double LOOK_S = 0.1;  // interval at which a wait checks for Ctrl-C

// The engine, and by ticket the arrays that must live as long as it works on them. The order matters: members are
// destroyed in reverse order, and the engine's threads write to the arrays until it has ended.
struct PyEngine {
    std::map<std::uint64_t, Values> held;
    Engine engine;

    PyEngine(const std::string &address, const std::vector<std::uint16_t> &ports) : engine(address, ports) {}

    void configure(const Place &place) {
        std::uint64_t forgotten = 0;
        {
            nb::gil_scoped_release free;
            forgotten = engine.configure(place);
        }
        held.erase(held.begin(), held.upper_bound(forgotten));
    }

    std::uint64_t submit(Values x, bool average) {
        const DType dtype = dtype_of(x);
        if (average && dtype == DType::int32) throw std::invalid_argument("int32 tensors can be summed, not averaged");
        std::uint64_t ticket = 0;
        {
            nb::gil_scoped_release free;
            ticket = engine.submit(dtype, x.data(), x.size(), average);
        }
        held.emplace(ticket, std::move(x));
        return ticket;
    }

    bool wait(std::uint64_t ticket, double seconds) {
        bool done = false;
        try {
            nb::gil_scoped_release free;
            done = engine.wait(ticket, seconds);
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
        engine.halt();
    }

    // One tensor by itself.
    void allreduce(Values x, bool average, double deadline_s) {
        require(deadline_s > 0 && deadline_s < 1e9, "the deadline must be in 0..1e9 seconds");
        const std::uint64_t ticket = submit(std::move(x), average);
        while (!wait(ticket, LOOK_S)) {
            if (PyErr_CheckSignals() != 0) {
                halt();
                throw nb::python_error();
            }
            const double silent = engine.silent();
            if (silent <= deadline_s) continue;
            const std::uint64_t position = engine.position();
            halt();
            throw Stalled(position, silent);
        }
    }
};

nb::dict stats(const PyEngine &self) {
    nb::dict out = counted(self.engine.stats());
    out["position"] = self.engine.position();
    return out;
}

}  // namespace

void bind_engine(nb::module_ &m) {
    auto stalled = nb::exception<Stalled>(m, "Stalled", PyExc_TimeoutError);
    nb::exception<Cancelled>(m, "Cancelled", PyExc_RuntimeError);
    nb::exception<SumOverflow>(m, "SumOverflow", PyExc_OverflowError);
    nb::exception<TensorsDiffer>(m, "TensorsDiffer", PyExc_ValueError);
    stalled.attr("__doc__") = "No result from the fabric for the whole deadline.";

    nb::class_<PyEngine>(m, "Engine",
                         "UDP sockets, each with a thread and a stream of slots over it. Arrays (numpy or torch, 1-D, "
                         "contiguous; float32, float16, bfloat16, int32) are summed in the order of submit().")
        .def(nb::init<const std::string &, const std::vector<std::uint16_t> &>(), "address"_a,
             "ports"_a = std::vector<std::uint16_t>{0})
        .def_prop_ro("address", [](const PyEngine &self) { return self.engine.address(); })
        .def_prop_ro("ports", [](const PyEngine &self) { return self.engine.ports(); })
        .def_prop_ro(
            "position", [](const PyEngine &self) { return self.engine.position(); },
            "Slots that this rank has been through.")
        .def(
            "configure",
            [](PyEngine &self, const std::string &fabric_address, std::uint16_t fabric_port, std::uint16_t job,
               std::uint32_t epoch, std::uint16_t rank, int world_size,
               const std::vector<std::pair<std::uint16_t, int>> &pools, int elements,
               std::shared_ptr<const CheckWords> check, int window, const Ends &servers, int levels) {
                Place place{{fabric_address, fabric_port},
                            job,
                            rank,
                            epoch,
                            world_size,
                            elements,
                            window,
                            std::move(check),
                            {}};
                require(servers.empty() || servers.size() == pools.size(),
                        "configure: a server for each pool, or none");
                for (std::size_t i = 0; i < pools.size(); i++)
                    place.pools.push_back({pools[i].first, pools[i].second,
                                           servers.empty() ? End{} : End{servers[i].first, servers[i].second}, false,
                                           levels});
                self.configure(place);
            },
            "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "rank"_a, "world_size"_a, "pools"_a, "elements"_a,
            "check"_a, "window"_a = 0, "servers"_a = Ends{}, "levels"_a = 1,
            "A new stream. pools: (first slot, slots) per port; window: packets outstanding, 0 for as many as losses "
            "in queues leave; servers: (address, port) per port of whoever sends the results, none for the switch; "
            "levels: the switches that a contribution passes, with the one that sums.")
        .def(
            "echo",
            [](PyEngine &self, std::size_t lane, const std::string &address, std::uint16_t port,
               const nb::bytes &question, double seconds) {
                const std::vector<std::uint8_t> packet = packet_of(question);
                nb::gil_scoped_release free;
                return self.engine.echo(lane, {address, port}, packet, nanoseconds(seconds));
            },
            "lane"_a, "fabric_address"_a, "fabric_port"_a, "question"_a, "seconds"_a,
            "Send a packet to the fabric and wait so long until it comes back with nothing changed but its rank, which "
            "is returned; None if it does not.")
        .def("submit", &PyEngine::submit, "array"_a.noconvert(), "average"_a = false,
             nb::sig("def submit(self, array: object, average: bool = False) -> int"),
             "Begin to sum an array over the ranks, in place; the ticket to wait for.")
        .def("wait", &PyEngine::wait, "ticket"_a, "seconds"_a,
             "Whether it is done, waiting so long. Raises SumOverflow (nothing was summed), Cancelled, "
             "TensorsDiffer (likewise, and only configure() helps).")
        .def("allreduce", &PyEngine::allreduce, "array"_a.noconvert(), "average"_a, "deadline_s"_a,
             nb::sig("def allreduce(self, array: object, average: bool, deadline_s: float) -> None"),
             "submit() and wait(). Raises Stalled, after which only configure() helps.")
        .def("halt", &PyEngine::halt, "Stop sending and receiving, until configure().")
        .def_prop_ro("halted", [](const PyEngine &self) { return self.engine.halted(); })
        .def(
            "silent", [](const PyEngine &self) { return self.engine.silent(); },
            "Seconds without a result while something is outstanding.")
        .def(
            "retained",
            [](const PyEngine &self) {
                const std::size_t slots = self.engine.slots();
                const std::size_t each = 1 + static_cast<std::size_t>(self.engine.place().elements);
                auto positions = new_vector<std::int64_t>(slots);
                auto *words = new std::int32_t[slots * each];
                Matrix<std::int32_t> matrix(words, {slots, each}, nb::capsule(words, [](void *p) noexcept {
                                                delete[] static_cast<std::int32_t *>(p);
                                            }));
                self.engine.retained(positions.data(), reinterpret_cast<std::uint32_t *>(words));
                return nb::make_tuple(positions, matrix);
            },
            nb::sig(
                "def retained(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32]]"),
            "After halt(): the slots' last results, as (positions int64 (S,), -1 for none; words int32 (S, 1 + E)).")
        .def(
            "restore",
            [](PyEngine &self, Vector<const std::int64_t> positions, Matrix<const std::int32_t> words) {
                require(positions.size() == self.engine.slots() && words.shape(0) == positions.size()
                            && words.shape(1) == 1 + static_cast<std::size_t>(self.engine.place().elements),
                        "restore: as many slots and words as retained() gave");
                self.engine.restore(positions.data(), reinterpret_cast<const std::uint32_t *>(words.data()));
            },
            "positions"_a, "words"_a, "After halt(): take results of other ranks that this one waits for.")
        .def(
            "unfinished",
            [](const PyEngine &self) {
                nb::list out;
                for (const Remainder &left : self.engine.unfinished()) {
                    auto done = new_vector<std::uint8_t>(left.done.size());
                    std::copy(left.done.begin(), left.done.end(), done.data());
                    out.append(nb::make_tuple(left.ticket, done));
                }
                return out;
            },
            nb::sig("def unfinished(self) -> list[tuple[int, numpy.typing.NDArray[numpy.uint8]]]"),
            "After halt(): (ticket, done uint8 per chunk) of what is not done.")
        .def(
            "cancel", [](PyEngine &self) { self.engine.cancel(); }, "Make every wait() raise Cancelled.")
        .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int]"));
}

}  // namespace netfold
