// The module hostlib._engine, and what its binding files share.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <system_error>

#include "bindings/bindings.h"
#include "wire/layout.h"

namespace nb = nanobind;

namespace netfold {

void require(bool fits, const std::string &what) {
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
    out["marked"] = s.marked;
    out["window"] = s.window;
    out["busy_ns"] = s.busy_ns;
    out["blocked_ns"] = s.blocked_ns;
    out["rtt_ns"] = s.rtt_ns;
    return out;
}

std::vector<std::uint8_t> packet_of(const nb::bytes &question) {
    require(question.size() >= layout::HEADER_BYTES, "echo: a packet is no shorter than its header");
    const auto *first = static_cast<const std::uint8_t *>(question.data());
    return {first, first + question.size()};
}

std::int64_t nanoseconds(double seconds) {
    require(seconds > 0 && seconds < 1e9, "echo: the timeout must be in 0..1e9 seconds");
    return static_cast<std::int64_t>(seconds * 1e9);
}

}  // namespace netfold

NB_MODULE(_engine, m) {
    // Disable nanobind's leak warnings: a process group that lives until interpreter exit is not a leak.
    nb::set_leak_warnings(false);
    m.doc() = "netfold's packet engine: one rank's end of the slot protocol (docs/protocol.md).";
    nb::register_exception_translator([](const std::exception_ptr &p, void *) {
        try {
            std::rethrow_exception(p);
        } catch (const std::system_error &e) {
            PyErr_SetString(PyExc_OSError, e.what());
        }
    });
    netfold::bind_check_words(m);
    netfold::bind_engine(m);
    netfold::bind_scatter(m);
    netfold::bind_shared_sum(m);
    netfold::bind_server(m);
    netfold::bind_multicaster(m);
    netfold::bind_blocks(m);
    netfold::bind_tensor_blocks(m);
}
