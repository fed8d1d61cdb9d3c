// hostlib._engine: bindings only.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <system_error>

#include "engine.h"
#include "kernel.h"

namespace nb = nanobind;
using namespace nb::literals;
using netfold::Engine;

template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

namespace {

// Ctrl-C must reach a rank that waits for the network. Outside the main thread this does nothing.
void check_signals() {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void require(bool fits, const char *what) {
    if (!fits) throw std::invalid_argument(what);
}

nb::dict stats(const Engine &engine) {
    const netfold::Stats s = engine.stats();
    nb::dict out;
    out["packets_sent"] = s.packets_sent;
    out["packets_received"] = s.packets_received;
    out["retransmits"] = s.retransmits;
    out["duplicates"] = s.duplicates;
    out["damaged"] = s.damaged;
    out["foreign"] = s.foreign;
    out["bytes_sent"] = s.bytes_sent;
    out["bytes_received"] = s.bytes_received;
    out["chunks"] = s.chunks;
    out["blocked_ns"] = s.blocked_ns;
    out["rtt_ns"] = s.rtt_ns;
    out["position"] = engine.position();
    return out;
}

}  // namespace

NB_MODULE(_engine, m) {
    // A process group that lives until the interpreter ends is no leak worth a warning on the user's terminal.
    nb::set_leak_warnings(false);
    m.doc() = "netfold's packet engine: one rank's end of the slot protocol (docs/protocol.md).";

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

    nb::class_<Engine>(m, "Engine", "A UDP socket and the stream of slots over it. One all-reduce at a time.")
        .def(nb::init<const std::string &, std::uint16_t>(), "address"_a, "port"_a = 0)
        .def_prop_ro("address", &Engine::address)
        .def_prop_ro("port", &Engine::port)
        .def_prop_ro("position", &Engine::position)
        .def("configure",
             [](Engine &engine, const std::string &fabric_address, std::uint16_t fabric_port, std::uint16_t job,
                std::uint32_t epoch, std::uint16_t rank, int world_size, std::uint16_t first_slot, int slots,
                int elements, int window) {
                 engine.configure({fabric_address, fabric_port, job, rank, first_slot, epoch, world_size, slots,
                                   elements, window});
             },
             "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "rank"_a, "world_size"_a, "first_slot"_a,
             "slots"_a, "elements"_a, "window"_a = 0)
        .def("allreduce",
             [](Engine &engine, Vector<float> x, bool average, double deadline_s) {
                 nb::gil_scoped_release free;
                 engine.allreduce(x.data(), x.size(), average, deadline_s, check_signals);
             },
             "array"_a.noconvert(), "average"_a, "deadline_s"_a)
        .def("allreduce",
             [](Engine &engine, Vector<std::int32_t> x, bool average, double deadline_s) {
                 if (average) throw std::invalid_argument("int32 tensors can be summed, not averaged");
                 nb::gil_scoped_release free;
                 engine.allreduce(x.data(), x.size(), deadline_s, check_signals);
             },
             "array"_a.noconvert(), "average"_a, "deadline_s"_a)
        .def("cancel", &Engine::cancel, "Make the all-reduce of another thread raise Cancelled.")
        .def("stats", &stats);

    m.def("block_code", [](Vector<const float> x) { return netfold::block_code(x.data(), x.size()); });
    m.def("magnitude_code", [](Vector<const std::int32_t> x) { return netfold::magnitude_code(x.data(), x.size()); });
    m.def("may_overflow", &netfold::may_overflow);
    m.def("quantise", [](Vector<const float> x, Vector<std::int32_t> q, std::uint16_t code, int world_size) {
        require(q.size() == x.size(), "quantise: both arrays must have the same size");
        netfold::quantise(x.data(), q.data(), x.size(), code, world_size);
    });
    m.def("dequantise", [](Vector<const std::int32_t> sum, Vector<float> x, std::uint16_t code, int world_size,
                           bool average) {
        require(x.size() == sum.size(), "dequantise: both arrays must have the same size");
        netfold::dequantise(sum.data(), x.data(), sum.size(), code, world_size, average);
    });
    m.def("pack", [](Vector<const std::int32_t> q, Vector<std::uint8_t> wire) {
        require(wire.size() == 4 * q.size(), "pack: the wire takes 4 bytes per element");
        return netfold::pack(q.data(), wire.data(), q.size());
    });
    m.def("unpack", [](Vector<const std::uint8_t> wire, Vector<std::int32_t> q) {
        require(wire.size() == 4 * q.size(), "unpack: the wire holds 4 bytes per element");
        return netfold::unpack(wire.data(), q.data(), q.size());
    });
}
