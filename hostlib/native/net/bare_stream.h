// What a path takes of a core with nothing above it. For who measures a rank's engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "net/socket.h"

namespace netfold {

// Sends packets from `address` to a reflector and receives them back for so long; how many per second of this thread's
// CPU time. Throws as open_socket() and Socket::aim() do, std::runtime_error if nothing comes back.
double bare_stream(const std::string &address, const End &reflector, std::size_t packet_bytes, std::int64_t time_ns);

}  // namespace netfold
