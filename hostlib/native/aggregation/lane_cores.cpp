#include "aggregation/lane_cores.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "net/environment.h"

namespace netfold {
namespace {

constexpr const char *CORES = "NETFOLD_CORES";

std::vector<int> allowed_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> found;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &set)) found.push_back(core);
    return found;
}

// As a launcher numbers the ranks of a host; a lone process has no such number.
std::size_t local_rank() {
    const char *named = std::getenv("LOCAL_RANK");
    return named == nullptr ? 0 : std::strtoul(named, nullptr, 10);
}

}  // namespace

std::vector<std::optional<int>> lane_cores(std::size_t lanes) {
    const std::vector<int> cores = numbers_named(CORES, CPU_SETSIZE - 1, "numbers of cores");
    std::vector<std::optional<int>> chosen(lanes);
    if (cores.empty()) return chosen;
    const std::vector<int> allowed = allowed_cores();
    for (const int core : cores) {
        if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) continue;
        std::string may;
        for (const int each : allowed) may += (may.empty() ? "" : ",") + std::to_string(each);
        throw std::invalid_argument(std::string(CORES) + ": this process may not run on core " + std::to_string(core)
                                    + ", but on " + may);
    }
    const std::size_t first = local_rank() * lanes;
    for (std::size_t lane = 0; lane < lanes; lane++) chosen[lane] = cores[(first + lane) % cores.size()];
    return chosen;
}

void bind_to(std::thread &thread, int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(core), &set);
    pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace netfold
