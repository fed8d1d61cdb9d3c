#include "net/bare_stream.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <stdexcept>

#include "net/clock.h"

namespace netfold {
namespace {

constexpr int OUTSTANDING = 2 * Socket::BATCH;
constexpr std::int64_t LOST_NS = 20 * MILLISECOND_NS;

std::int64_t thread_cpu_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000 * MILLISECOND_NS + now.tv_nsec;
}

}  // namespace

double bare_stream(const std::string &address, const End &reflector, std::size_t packet_bytes, std::int64_t time_ns) {
    const std::unique_ptr<Socket> socket = open_socket(address, 0);
    socket->aim(reflector, packet_bytes);
    std::uint64_t came = 0;
    const std::int64_t end = now_ns() + time_ns, cpu = thread_cpu_ns();
    for (int outstanding = 0; now_ns() < end;) {
        for (; outstanding < OUTSTANDING; outstanding++) std::memset(socket->next(), 0, packet_bytes);
        socket->flush();
        const int count = socket->receive(LOST_NS);
        came += static_cast<std::uint64_t>(count);
        outstanding = count == 0 ? 0 : std::max(outstanding - count, 0);
    }
    if (came == 0) throw std::runtime_error("nothing comes back from " + reflector.address);
    return static_cast<double>(came) * 1e9 / static_cast<double>(std::max<std::int64_t>(thread_cpu_ns() - cpu, 1));
}

}  // namespace netfold
