// The eBPF program of an interface: it hands packets for known sockets to their rings, and all others to the kernel.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace netfold {

// A file descriptor that is closed with its owner.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(Descriptor &&other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Descriptor &operator=(Descriptor &&other) noexcept;
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void close();

private:
    int fd_ = -1;
};

// Of one queue of an interface. Sockets have numbers below `sockets`. The program leaves the interface with the object,
// and with its process, however that ends.
class XdpProgram {
public:
    // In the driver if that can, else for any. Throws std::system_error: another program is there, or this process must
    // not.
    XdpProgram(int interface, const std::string &name, unsigned queue, unsigned sockets);

    // Socket `number` is that of `fd`.
    void put_socket(unsigned number, int fd);
    void remove_socket(unsigned number);
    // Datagrams to there, of at most so many bytes with their UDP and IPv4 headers, are for socket `number`.
    void direct(const sockaddr_in &to, unsigned number, std::size_t longest);
    void leave(const sockaddr_in &to);

private:
    unsigned queue_;
    Descriptor sockets_, ends_, program_, link_;
};

}  // namespace netfold
