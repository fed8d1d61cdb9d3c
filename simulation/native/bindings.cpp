// simulation._kernel: bindings only. The columns of the tables are documented in simulation/simulator/compile.py and
// model.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "simulator.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace netfold::simulation;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Table = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool fits, const char *what) {
    if (!fits) throw std::invalid_argument(what);
}

Program program(std::int32_t pieces, std::int32_t workers, const Table<std::int32_t> &nodes,
                const Column<std::int32_t> &begin, const Table<std::int32_t> &ops, const Table<std::int32_t> &peers,
                std::vector<std::uint64_t> piece_bytes, const Column<std::int64_t> &durations, bool servers_stream) {
    require(nodes.shape(1) == 2 && ops.shape(1) == 10 && peers.shape(1) == 3 && begin.shape(0) == nodes.shape(0) + 1,
            "a program's tables have other shapes");
    require(piece_bytes.empty() || piece_bytes.size() == static_cast<std::size_t>(pieces),
            "not all pieces have a size");
    Program p{pieces, workers, {}, {}, {}, {}, {}, {}, {}, {}, std::move(piece_bytes), {}, servers_stream};
    p.durations.assign(durations.data(), durations.data() + durations.shape(0));
    for (std::size_t i = 0; i < nodes.shape(0); i++) {
        p.nodes.push_back(nodes(i, 0));
        p.holds.push_back(static_cast<std::uint8_t>(nodes(i, 1)));
    }
    p.begin.assign(begin.data(), begin.data() + begin.shape(0));
    for (std::size_t i = 0; i < ops.shape(0); i++)
        p.ops.push_back({static_cast<Kind>(ops(i, 0)), ops(i, 1) != 0, static_cast<std::uint16_t>(ops(i, 2)), ops(i, 3),
                         ops(i, 4), ops(i, 5), ops(i, 6), ops(i, 7), ops(i, 8), ops(i, 9)});
    for (std::size_t i = 0; i < peers.shape(0); i++) p.peers.push_back({peers(i, 0), peers(i, 1), peers(i, 2)});
    return p;
}

Job job(std::int32_t workers, std::int32_t iterations, bool servers, bool barrier, bool pipelined,
        std::int32_t channels, int order, std::uint64_t seed, const Table<std::int64_t> &forward,
        const Table<std::int64_t> &backward, std::vector<std::vector<std::int32_t>> released,
        std::vector<std::int32_t> errands, std::vector<std::vector<std::int32_t>> asked,
        std::vector<std::vector<std::int32_t>> awaited, std::uint64_t slots, std::uint64_t frame_bytes,
        const Column<std::int64_t> &round_trip, double request_share, bool padded, std::uint64_t opened,
        std::uint64_t opened_by_each) {
    require(forward.shape(0) == backward.shape(0) && forward.shape(0) > 0 && forward.shape(1) > 0
                && backward.shape(1) == released.size() && backward.shape(1) > 0,
            "a job's durations have other shapes");
    const std::size_t steps = forward.shape(1) + backward.shape(1);
    require(asked.size() == steps && awaited.size() == steps, "not all steps say what they begin and wait for");
    return {workers,
            iterations,
            servers,
            barrier,
            pipelined,
            channels,
            static_cast<Order>(order),
            seed,
            static_cast<std::int32_t>(forward.shape(1)),
            static_cast<std::int32_t>(backward.shape(1)),
            static_cast<std::int32_t>(forward.shape(0)),
            {forward.data(), forward.data() + forward.size()},
            {backward.data(), backward.data() + backward.size()},
            std::move(released),
            std::move(errands),
            std::move(asked),
            std::move(awaited),
            slots,
            frame_bytes,
            {round_trip.data(), round_trip.data() + round_trip.shape(0)},
            request_share,
            padded,
            opened,
            opened_by_each};
}

void make(Simulator *self, const Column<double> &ps_per_byte, const Column<std::int64_t> &latency,
          const Column<double> &loss, const Table<std::int32_t> &nodes, std::vector<Program> programs,
          const Table<std::int64_t> &tensors, std::vector<Job> jobs, std::int64_t overhead_ps, bool store_and_forward,
          bool store_and_aggregate, std::uint64_t turn_bytes, std::uint64_t window_bytes, std::int64_t timeout_ps) {
    require(ps_per_byte.shape(0) == latency.shape(0) && loss.shape(0) == latency.shape(0) && nodes.shape(1) == 5
                && tensors.shape(1) == 8,
            "the tables have other shapes");
    std::vector<Link> links;
    for (std::size_t i = 0; i < latency.shape(0); i++) links.push_back({ps_per_byte(i), latency(i), loss(i)});
    std::vector<Node> tree;
    for (std::size_t i = 0; i < nodes.shape(0); i++)
        tree.push_back({nodes(i, 0), nodes(i, 1), nodes(i, 2), nodes(i, 3) != 0, nodes(i, 4)});
    for (const Job &each : jobs) {
        require((each.slots == 0 && !each.padded) || each.frame_bytes > 0, "a job's slots and padding need frames");
        require(each.slots == 0 || each.round_trip.size() == tree.size(), "slots need a round trip for every node");
    }
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < tensors.shape(0); i++)
        all.push_back({static_cast<std::int32_t>(tensors(i, 0)), static_cast<std::int32_t>(tensors(i, 1)),
                       tensors(i, 2), static_cast<std::int32_t>(tensors(i, 3)),
                       static_cast<std::int32_t>(tensors(i, 4)), static_cast<std::int32_t>(tensors(i, 5)),
                       static_cast<std::int32_t>(tensors(i, 6)), static_cast<std::int32_t>(tensors(i, 7))});
    new (self)
        Simulator(Model(std::move(links), std::move(tree), std::move(programs), std::move(all), std::move(jobs),
                        {overhead_ps, store_and_forward, store_and_aggregate, turn_bytes, window_bytes, timeout_ps}));
}

nb::dict results(const Simulator &simulator) {
    const Result &r = simulator.result();
    nb::dict out;
    out["events"] = r.events;
    out["messages"] = r.messages;
    out["link_bytes"] = r.link_bytes;
    out["link_busy_ps"] = r.link_busy;
    out["iteration_end_ps"] = r.iteration_end;
    out["reduced_ps"] = r.reduced;
    out["delivered_ps"] = r.delivered;
    out["forward_end_ps"] = r.forward_end;
    out["backward_end_ps"] = r.backward_end;
    return out;
}

std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> stuck(const Simulator &simulator) {
    std::vector<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>> out;
    for (const Stuck &s : simulator.stuck()) out.emplace_back(s.job, s.tensor, s.node, s.op);
    return out;
}

}  // namespace

NB_MODULE(_kernel, m) {
    nb::class_<Program>(m, "Program");
    nb::class_<Job>(m, "Job");
    m.def("program", &program, "pieces"_a, "workers"_a, "nodes"_a, "begin"_a, "ops"_a, "peers"_a, "piece_bytes"_a,
          "durations_ps"_a, "servers_stream"_a);
    m.def("job", &job, "workers"_a, "iterations"_a, "servers"_a, "barrier"_a, "pipelined"_a, "channels"_a, "order"_a,
          "seed"_a, "forward_ps"_a, "backward_ps"_a, "released"_a, "errands"_a, "asked"_a, "awaited"_a, "slots"_a,
          "frame_bytes"_a, "round_trip_ps"_a, "request_share"_a, "padded"_a, "opened"_a, "opened_by_each"_a);
    nb::class_<Simulator>(m, "Kernel")
        .def("__init__", &make, "ps_per_byte"_a, "latency_ps"_a, "loss"_a, "nodes"_a, "programs"_a, "tensors"_a,
             "jobs"_a, "overhead_ps"_a, "store_and_forward"_a, "store_and_aggregate"_a, "turn_bytes"_a,
             "window_bytes"_a, "timeout_ps"_a)
        .def("run", &Simulator::run, "events"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("results", &results, nb::sig("def results(self) -> dict[str, typing.Any]"))
        .def("stuck", &stuck);
}
