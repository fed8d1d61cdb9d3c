// Which cores the lanes' threads run on.
#pragma once

#include <cstddef>
#include <optional>
#include <thread>
#include <vector>

namespace netfold {

// A core for each lane: those that NETFOLD_CORES names in turn, first for the lanes of the host's first rank
// (LOCAL_RANK), then for those of its second. None without it. Throws std::invalid_argument if it names none, or one
// that this process must not use.
std::vector<std::optional<int>> lane_cores(std::size_t lanes);

// Has a thread run there only.
void bind_to(std::thread &thread, int core);

}  // namespace netfold
