// hostlib._engine: bindings only.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <system_error>
#include <utility>

#include "binding.h"
#include "blocks.h"
#include "engine.h"
#include "kernel_binding.h"
#include "server.h"

namespace nb = nanobind;
using namespace nb::literals;
using netfold::Cut;
using netfold::DType;
using netfold::End;
using netfold::Engine;
using netfold::Server;
using Ends = std::vector<std::pair<std::string, std::uint16_t>>;

// Of numpy or torch, writable.
using Values = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Matrix = nb::ndarray<nb::numpy, T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

namespace {

constexpr double LOOK_S = 0.1;  // how often a wait looks for Ctrl-C

void require(bool fits, const char *what) {
    if (!fits) throw std::invalid_argument(what);
}

DType dtype_of(const Values &x) {
    const auto type = x.dtype();
    const auto is = [&](nb::dlpack::dtype_code code, int bits) {
        return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
    };
    if (is(nb::dlpack::dtype_code::Float, 32)) return DType::float32;
    if (is(nb::dlpack::dtype_code::Float, 16)) return DType::float16;
    if (is(nb::dlpack::dtype_code::Bfloat, 16)) return DType::bfloat16;
    if (is(nb::dlpack::dtype_code::Int, 32)) return DType::int32;
    throw std::invalid_argument("the switch sums float32, float16, bfloat16 and int32; this array is of another dtype");
}

template <typename T>
Vector<T> new_vector(std::size_t size) {
    T *data = new T[size];
    return Vector<T>(data, {size}, nb::capsule(data, [](void *p) noexcept { delete[] static_cast<T *>(p); }));
}

// The engine, and the arrays that must live as long as it works on them.
struct PyEngine {
    Engine engine;
    std::map<std::uint64_t, Values> held;

    std::uint64_t submit(Values x, bool average) {
        const DType dtype = dtype_of(x);
        if (average && dtype == DType::int32) throw std::invalid_argument("int32 tensors can be summed, not averaged");
        const std::uint64_t ticket = engine.submit(dtype, x.data(), x.size(), average);
        held.emplace(ticket, std::move(x));
        return ticket;
    }

    bool wait(std::uint64_t ticket, double seconds) {
        bool done = false;
        try {
            nb::gil_scoped_release free;
            done = engine.wait(ticket, seconds);
        } catch (const netfold::SumOverflow &) {
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

    // One tensor and nothing beside it: a caller that wants no more than that.
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
            throw netfold::Stalled(position, silent);
        }
    }
};

nb::dict stats(const PyEngine &self) {
    nb::dict out = netfold::counted(self.engine.stats());
    out["position"] = self.engine.position();
    return out;
}

void bind_engine(nb::module_ &m) {
    auto stalled = nb::exception<netfold::Stalled>(m, "Stalled", PyExc_TimeoutError);
    nb::exception<netfold::Cancelled>(m, "Cancelled", PyExc_RuntimeError);
    nb::exception<netfold::SumOverflow>(m, "SumOverflow", PyExc_OverflowError);
    stalled.attr("__doc__") = "No result from the fabric for the whole deadline.";
    nb::register_exception_translator([](const std::exception_ptr &p, void *) {
        try {
            std::rethrow_exception(p);
        } catch (const std::system_error &e) {
            PyErr_SetString(PyExc_OSError, e.what());
        }
    });

    nb::class_<PyEngine>(m, "Engine",
                         "UDP sockets, each with a thread and a stream of slots over it. Arrays (numpy or torch, 1-D, "
                         "contiguous; float32, float16, bfloat16, int32) are summed in the order of submit().")
        .def("__init__",
             [](PyEngine *self, const std::string &address, const std::vector<std::uint16_t> &ports) {
                 new (self) PyEngine{Engine(address, ports), {}};
             },
             "address"_a, "ports"_a = std::vector<std::uint16_t>{0})
        .def_prop_ro("address", [](const PyEngine &self) { return self.engine.address(); })
        .def_prop_ro("ports", [](const PyEngine &self) { return self.engine.ports(); })
        .def_prop_ro("position", [](const PyEngine &self) { return self.engine.position(); },
                     "Slots that this rank has been through.")
        .def("configure",
             [](PyEngine &self, const std::string &fabric_address, std::uint16_t fabric_port, std::uint16_t job,
                std::uint32_t epoch, std::uint16_t rank, int world_size,
                const std::vector<std::pair<std::uint16_t, int>> &pools, int elements, int window, const Ends &servers) {
                 netfold::Place place{{fabric_address, fabric_port}, job, rank, epoch, world_size, elements, window, {}};
                 require(servers.empty() || servers.size() == pools.size(), "configure: a server for each pool, or none");
                 for (std::size_t i = 0; i < pools.size(); i++)
                     place.pools.push_back({pools[i].first, pools[i].second,
                                            servers.empty() ? End{} : End{servers[i].first, servers[i].second}});
                 {
                     nb::gil_scoped_release free;
                     self.engine.configure(place);
                 }
                 self.held.clear();
             },
             "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "rank"_a, "world_size"_a, "pools"_a,
             "elements"_a, "window"_a = 0, "servers"_a = Ends{},
             "A new stream. pools: (first slot, slots) per port; servers: (address, port) per port of whoever sends the "
             "results, none for the switch.")
        .def("submit", &PyEngine::submit, "array"_a.noconvert(), "average"_a = false,
             "Begin to sum an array over the ranks, in place; the ticket to wait for.")
        .def("wait", &PyEngine::wait, "ticket"_a, "seconds"_a,
             "Whether it is done, waiting so long. Raises SumOverflow (nothing was summed), Cancelled.")
        .def("allreduce", &PyEngine::allreduce, "array"_a.noconvert(), "average"_a, "deadline_s"_a,
             "submit() and wait(). Raises Stalled, after which only configure() helps.")
        .def("halt", &PyEngine::halt, "Stop sending and receiving, until configure().")
        .def_prop_ro("halted", [](const PyEngine &self) { return self.engine.halted(); })
        .def("silent", [](const PyEngine &self) { return self.engine.silent(); },
             "Seconds without a result while something is outstanding.")
        .def("retained",
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
             "After halt(): the slots' last results, as (positions int64 (S,), -1 for none; words int32 (S, 1 + E)).")
        .def("restore",
             [](PyEngine &self, Vector<const std::int64_t> positions, Matrix<const std::int32_t> words) {
                 require(positions.size() == self.engine.slots() && words.shape(0) == positions.size()
                             && words.shape(1) == 1 + static_cast<std::size_t>(self.engine.place().elements),
                         "restore: as many slots and words as retained() gave");
                 self.engine.restore(positions.data(), reinterpret_cast<const std::uint32_t *>(words.data()));
             },
             "positions"_a, "words"_a, "After halt(): take results of other ranks that this one waits for.")
        .def("unfinished",
             [](const PyEngine &self) {
                 nb::list out;
                 for (const netfold::Remainder &left : self.engine.unfinished()) {
                     auto done = new_vector<std::uint8_t>(left.done.size());
                     std::copy(left.done.begin(), left.done.end(), done.data());
                     out.append(nb::make_tuple(left.ticket, left.openings, done));
                 }
                 return out;
             },
             "After halt(): (ticket, opening code per lane or -1, done uint8 per chunk) of what is not done.")
        .def("cancel", [](PyEngine &self) { self.engine.cancel(); }, "Make every wait() raise Cancelled.")
        .def("stats", &stats);
}

void bind_server(nb::module_ &m) {
    nb::class_<Server>(m, "Server", "A UDP socket with a thread that sends back what the switch has summed, as it came.")
        .def(nb::init<const std::string &, std::uint16_t>(), "address"_a, "port"_a = 0)
        .def_prop_ro("address", &Server::address)
        .def_prop_ro("port", &Server::port)
        .def("configure",
             [](Server &self, const std::string &fabric_address, std::uint16_t fabric_port, std::uint16_t job,
                std::uint32_t epoch, int world_size, std::uint16_t first_slot, int slots, int elements,
                const Ends &workers) {
                 require(fabric_port != 0 && world_size >= 1 && slots >= 1 && elements >= 1 && elements <= 2048,
                         "configure: an impossible place");
                 require(workers.empty() || workers.size() == static_cast<std::size_t>(world_size),
                         "configure: all workers, or none");
                 netfold::Header header{};
                 header.job = job;
                 header.epoch = epoch;
                 header.element_count = static_cast<std::uint16_t>(elements);
                 std::vector<End> ends;
                 for (const auto &[address, port] : workers) ends.push_back({address, port});
                 nb::gil_scoped_release free;
                 self.configure({fabric_address, fabric_port}, header, {first_slot, slots, {}}, world_size, ends);
             },
             "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "world_size"_a, "first_slot"_a, "slots"_a,
             "elements"_a, "workers"_a = Ends{}, "Answer from now on: the switch, or each of the workers, by rank.")
        .def("halt", &Server::halt, nb::call_guard<nb::gil_scoped_release>(), "Stop answering, until configure().")
        .def("stats", [](const Server &self) { return netfold::counted(self.stats()); });
}

void bind_blocks(nb::module_ &m) {
    m.def("own_codes",
          [](Values x, std::size_t elements, std::size_t slots, const std::vector<int> &openings) {
              require(elements > 0 && slots > 0 && !openings.empty(), "own_codes: elements, slots and lanes are at least 1");
              const Cut cut{x.size(), elements, slots, openings.size()};
              auto codes = new_vector<std::uint16_t>(cut.blocks());
              netfold::own_codes(dtype_of(x), x.data(), cut, openings.data(), codes.data());
              return codes;
          },
          "x"_a.noconvert(), "elements"_a, "slots"_a, "openings"_a,
          "Exponent code of every block, uint16 (blocks,). openings: a known code or -1, per lane.");
    m.def("quantise_blocks",
          [](Values x, std::size_t elements, Vector<const std::uint16_t> codes, int world_size) {
              require(elements > 0, "quantise_blocks: elements are at least 1");
              const Cut cut{x.size(), elements, 1, 1};
              require(codes.size() == cut.blocks(), "quantise_blocks: a code per block");
              auto q = new_vector<std::int32_t>(x.size());
              netfold::quantise_blocks(dtype_of(x), x.data(), cut, codes.data(), world_size, q.data());
              return q;
          },
          "x"_a.noconvert(), "elements"_a, "codes"_a, "world_size"_a, "int32 (N,) under the agreed codes.");
    m.def("dequantise_blocks",
          [](Vector<const std::int32_t> sum, Values x, std::size_t elements, Vector<const std::uint16_t> codes,
             int world_size, bool average, Vector<const std::uint8_t> done) {
              require(elements > 0, "dequantise_blocks: elements are at least 1");
              const Cut cut{x.size(), elements, 1, 1};
              require(sum.size() == x.size() && codes.size() == cut.blocks() && done.size() == cut.blocks(),
                      "dequantise_blocks: a sum per value, and a code and a done per block");
              netfold::dequantise_blocks(dtype_of(x), sum.data(), cut, codes.data(), world_size, average, done.data(),
                                         x.data());
          },
          "sum"_a, "x"_a.noconvert(), "elements"_a, "codes"_a, "world_size"_a, "average"_a, "done"_a,
          "The way back, into x; blocks that are done stay as they are.");
}

}  // namespace

namespace netfold {

nb::dict counted(const Stats &s) {
    nb::dict out;
    out["packets_sent"] = s.packets_sent;
    out["packets_received"] = s.packets_received;
    out["retransmits"] = s.retransmits;
    out["duplicates"] = s.duplicates;
    out["damaged"] = s.damaged;
    out["foreign"] = s.foreign;
    out["overtaken"] = s.overtaken;
    out["spoiled"] = s.spoiled;
    out["refused"] = s.refused;
    out["bytes_sent"] = s.bytes_sent;
    out["bytes_received"] = s.bytes_received;
    out["chunks"] = s.chunks;
    out["busy_ns"] = s.busy_ns;
    out["blocked_ns"] = s.blocked_ns;
    out["rtt_ns"] = s.rtt_ns;
    return out;
}

}  // namespace netfold

NB_MODULE(_engine, m) {
    // A process group that lives until the interpreter ends is no leak worth a warning on the user's terminal.
    nb::set_leak_warnings(false);
    m.doc() = "netfold's packet engine: one rank's end of the slot protocol (docs/protocol.md).";
    bind_engine(m);
    bind_server(m);
    bind_blocks(m);
    netfold::bind_multicaster(m);
    netfold::bind_kernels(m);
}
