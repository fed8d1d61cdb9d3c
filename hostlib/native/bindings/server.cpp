// The server's endpoint for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "aggregation/server.h"
#include "bindings/bindings.h"
#include "net/bare_stream.h"
#include "net/reflector.h"
#include "wire/layout.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {

void bind_server(nb::module_ &m) {
    nb::class_<Server>(m, "Server",
                       "A UDP socket with a thread that sends back what the switch has summed, as it came.")
        .def(nb::init<const std::string &, std::uint16_t>(), "address"_a, "port"_a = 0)
        .def_prop_ro("address", &Server::address)
        .def_prop_ro("port", &Server::port)
        .def(
            "configure",
            [](Server &self, const std::string &fabric_address, std::uint16_t fabric_port, std::uint16_t job,
               std::uint32_t epoch, int world_size, std::uint16_t first_slot, int slots, int elements,
               std::shared_ptr<const CheckWords> check,
               const std::vector<std::pair<std::string, std::uint16_t>> &workers) {
                require(fabric_port != 0 && world_size >= 1 && slots >= 1 && elements >= 1 && elements <= 2048,
                        "configure: an impossible place");
                require(check->elements() == static_cast<std::size_t>(elements)
                            && check->ranks() == static_cast<std::size_t>(world_size),
                        "check words must be of as many elements and ranks");
                require(workers.empty() || workers.size() == static_cast<std::size_t>(world_size),
                        "configure: all workers, or none");
                Header header{};
                header.job = job;
                header.epoch = epoch;
                header.element_count = static_cast<std::uint16_t>(elements);
                std::vector<End> ends;
                for (const auto &[address, port] : workers) ends.push_back({address, port});
                nb::gil_scoped_release free;
                self.configure({fabric_address, fabric_port}, header, {first_slot, slots, {}}, world_size, ends,
                               std::move(check));
            },
            "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "world_size"_a, "first_slot"_a, "slots"_a,
            "elements"_a, "check"_a, "workers"_a = std::vector<std::pair<std::string, std::uint16_t>>{},
            "Answer from now on: the switch, or each of the workers, by rank.")
        .def(
            "echo",
            [](Server &self, const std::string &address, std::uint16_t port, const nb::bytes &question,
               double seconds) {
                const std::vector<std::uint8_t> packet = packet_of(question);
                nb::gil_scoped_release free;
                return self.echo({address, port}, packet, nanoseconds(seconds));
            },
            "fabric_address"_a, "fabric_port"_a, "question"_a, "seconds"_a, "As Engine.echo; halts first.")
        .def("halt", &Server::halt, nb::call_guard<nb::gil_scoped_release>(), "Stop answering, until configure().")
        .def(
            "stats", [](const Server &self) { return counted(self.stats()); },
            nb::sig("def stats(self) -> dict[str, int]"));
    nb::class_<Reflector>(m, "Reflector",
                          "A UDP socket with a thread that stands in for the fabric of a job of one rank: every "
                          "contribution comes back as its result, untested. It ends with the object.")
        .def(nb::init<const std::string &, std::uint16_t>(), "address"_a, "port"_a = 0)
        .def_prop_ro("port", &Reflector::port);
    m.def(
        "bare_stream",
        [](const std::string &address, const std::string &reflector_address, std::uint16_t reflector_port,
           std::size_t packet_bytes, double seconds) {
            if (packet_bytes < layout::HEADER_BYTES)
                throw std::invalid_argument("a packet is no shorter than its header");
            return bare_stream(address, {reflector_address, reflector_port}, packet_bytes, nanoseconds(seconds));
        },
        "address"_a, "reflector_address"_a, "reflector_port"_a, "packet_bytes"_a, "seconds"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Send packets to a Reflector and receive them back for so long, on the path that NETFOLD_PATH names; packets "
        "per second of this thread's CPU time.");
}

}  // namespace netfold
