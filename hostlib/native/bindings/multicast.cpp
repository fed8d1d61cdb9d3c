// The multicaster for Python: bytes are those of any contiguous array.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "multicast/multicaster.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace netfold {
namespace {

// Of numpy or torch.
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using EndTuple = std::pair<std::string, std::uint16_t>;
// First slot, slots, the receivers' ranks if this host is the source, and where they are, or where the source is.
using StreamTuple = std::tuple<std::uint16_t, int, std::vector<std::uint16_t>, std::vector<EndTuple>>;

// The multicaster, and by ticket the arrays that must live as long as it works on them. The order matters: members are
// destroyed in reverse order, and the multicaster's thread uses the arrays until it has ended.
struct PyMulticaster {
    std::map<std::uint64_t, Bytes> held;
    Multicaster multicaster;

    PyMulticaster(const std::string &address, std::uint16_t port) : multicaster(address, port) {}

    // Lets go of those that are done: nobody need wait for what was sent.
    std::uint64_t hold(std::uint64_t ticket, Bytes bytes) {
        std::erase_if(held, [this](const auto &each) { return multicaster.wait(each.first, 0); });
        held.emplace(ticket, std::move(bytes));
        return ticket;
    }
};

void configure(PyMulticaster &self, const std::string &address, std::uint16_t port, std::uint16_t job,
               std::uint32_t epoch, std::uint16_t rank, std::uint16_t sends_as, const std::vector<StreamTuple> &streams,
               int elements, std::shared_ptr<const CheckWords> check) {
    if (port == 0 || elements < 4 || elements > 2048 || streams.empty())
        throw std::invalid_argument("configure: an impossible place");
    require(check->elements() == static_cast<std::size_t>(elements) && check->ranks() == 1,
            "check words must be of as many elements, and of chunks");
    Header header{};
    header.job = job;
    header.epoch = epoch;
    header.rank = sends_as;
    header.element_count = static_cast<std::uint16_t>(elements);
    std::vector<StreamPlace> places;
    for (const auto &[first_slot, slots, receivers, ends] : streams) {
        if (slots < 1) throw std::invalid_argument("configure: a stream without slots");
        if (ends.size() != std::max<std::size_t>(receivers.size(), 1))
            throw std::invalid_argument("configure: an end for each receiver, or the source's");
        StreamPlace &place = places.emplace_back();
        place.pool.first_slot = first_slot;
        place.pool.slots = slots;
        place.source = !receivers.empty();
        place.receivers = receivers;
        for (const auto &[host, its_port] : ends) place.ends.push_back({host, its_port});
    }
    std::uint64_t forgotten = 0;
    {
        nb::gil_scoped_release free;
        forgotten = self.multicaster.configure({address, port}, header, rank, places, std::move(check));
    }
    self.held.erase(self.held.begin(), self.held.upper_bound(forgotten));
}

bool wait(PyMulticaster &self, std::uint64_t ticket, double seconds) {
    bool done = false;
    {
        nb::gil_scoped_release free;
        done = self.multicaster.wait(ticket, seconds);
    }
    if (done) self.held.erase(ticket);
    return done;
}

}  // namespace

void bind_multicaster(nb::module_ &m) {
    nb::class_<PyMulticaster>(m, "Multicaster",
                              "A UDP socket with a thread: streams of messages through the switch's multicast, whose "
                              "source is this host or another. Messages are uint8 arrays (numpy or torch, contiguous).")
        .def(nb::init<const std::string &, std::uint16_t>(), "address"_a, "port"_a = 0)
        .def_prop_ro("address", [](const PyMulticaster &self) { return self.multicaster.address(); })
        .def_prop_ro("port", [](const PyMulticaster &self) { return self.multicaster.port(); })
        .def_prop_ro(
            "position", [](const PyMulticaster &self) { return self.multicaster.position(); },
            "Chunks that this host has been through, of all streams.")
        .def("configure", &configure, "fabric_address"_a, "fabric_port"_a, "job"_a, "epoch"_a, "rank"_a, "sends_as"_a,
             "streams"_a, "elements"_a, "check"_a,
             "A new life of all streams: (first slot, slots, ranks of the receivers if this host is the source, else "
             "none, and (address, port) of each of them, or of the source) each. rank: what its NACKs say; sends_as: "
             "what its chunks say.")
        .def(
            "send",
            [](PyMulticaster &self, std::size_t stream, Bytes bytes) {
                const std::uint64_t ticket = self.multicaster.send(stream, bytes.data(), bytes.size());
                return self.hold(ticket, std::move(bytes));
            },
            "stream"_a, "bytes"_a.noconvert(), nb::sig("def send(self, stream: int, bytes: object) -> int"),
            "Begin to send; the ticket to wait for.")
        .def(
            "receive",
            [](PyMulticaster &self, std::size_t stream, Bytes bytes) {
                const std::uint64_t ticket = self.multicaster.receive(stream, bytes.data(), bytes.size());
                return self.hold(ticket, std::move(bytes));
            },
            "stream"_a, "bytes"_a.noconvert(), nb::sig("def receive(self, stream: int, bytes: object) -> int"),
            "Wait for the stream's next message, which has this size; the ticket.")
        .def(
            "echo",
            [](PyMulticaster &self, const std::string &address, std::uint16_t port, const nb::bytes &question,
               double seconds) {
                const std::vector<std::uint8_t> packet = packet_of(question);
                nb::gil_scoped_release free;
                return self.multicaster.echo({address, port}, packet, nanoseconds(seconds));
            },
            "fabric_address"_a, "fabric_port"_a, "question"_a, "seconds"_a, "As Engine.echo; halts first.")
        .def("wait", &wait, "ticket"_a, "seconds"_a,
             "Whether a message has left whole, or is here whole, waiting so long.")
        .def(
            "halt", [](PyMulticaster &self) { self.multicaster.halt(); }, nb::call_guard<nb::gil_scoped_release>(),
            "Stop sending and receiving, until configure().")
        .def(
            "granted", [](const PyMulticaster &self, std::size_t stream) { return self.multicaster.granted(stream); },
            "stream"_a, "Chunks of a stream, from its beginning on, that every receiver has; its source asks.")
        .def(
            "stats", [](const PyMulticaster &self) { return counted(self.multicaster.stats()); },
            nb::sig("def stats(self) -> dict[str, int]"));
}

}  // namespace netfold
