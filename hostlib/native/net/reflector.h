// A stand-in for the fabric of a job of one rank: every contribution comes back as its result. For who measures a
// rank's engine alone: nothing is copied but by the system, and nothing is tested.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace netfold {

class Reflector {
public:
    // Begins to reflect. Port 0 takes any. Throws std::system_error if it cannot be bound.
    Reflector(const std::string &address, std::uint16_t port);
    ~Reflector();
    Reflector(const Reflector &) = delete;
    Reflector &operator=(const Reflector &) = delete;

    std::uint16_t port() const { return port_; }

private:
    void run();

    int fd_ = -1;
    std::uint16_t port_ = 0;
    std::atomic<bool> quit_{false};
    std::thread thread_;
};

}  // namespace netfold
