// A queue of an interface, which this process has for its sockets: their packets' memory, and the program.
#pragma once

#include <linux/if_xdp.h>
#include <netinet/in.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/xdp/netlink.h"
#include "net/xdp/program.h"
#include "net/xdp/ring.h"

namespace netfold {

// Linux 6.6; Debian 12 has older headers.
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

// AF_XDP sockets of one queue share their memory (UMEM), so all of a process are here. Chunks to receive into belong to
// none of them; those to send from, CHUNKS_EACH in a row, to one. May be called by several threads at once.
class XdpQueue {
public:
    static constexpr std::size_t CHUNK_BYTES = 4096, CHUNKS_EACH = 128;
    static constexpr unsigned SOCKETS = 64;

    // The one of this process, which is made if there is none; it goes with its last owner. Throws std::system_error:
    // the interface is none for this, or its queue is another process's, or this process must not.
    static std::shared_ptr<XdpQueue> of(int interface);

    XdpQueue(int interface, unsigned queue);
    ~XdpQueue();
    XdpQueue(const XdpQueue &) = delete;
    XdpQueue &operator=(const XdpQueue &) = delete;

    const Interface &interface() const { return interface_; }
    int index() const { return index_; }
    unsigned queue() const { return queue_; }
    std::uint8_t *memory() const { return memory_; }
    // Bytes of the longest frame that is received.
    std::size_t longest() const { return longest_; }
    // An AF_XDP socket which shares the memory is bound with this one's.
    int descriptor() const { return socket_.get(); }
    XdpProgram &program() { return *program_; }

    // The number of one more socket. Throws std::system_error if there are SOCKETS.
    unsigned enter();
    void leave(unsigned number);

    // Where a socket's own chunks begin.
    static std::uint64_t chunks_of(unsigned number) {
        return (RECEIVED_CHUNKS + std::uint64_t{number} * CHUNKS_EACH) * CHUNK_BYTES;
    }
    // Whether the kernel has an own chunk, which is on its way.
    void send(std::uint64_t at) { flies(at).store(true, std::memory_order_relaxed); }
    bool is_sent(std::uint64_t at) const { return flies(at).load(std::memory_order_acquire); }
    void take_back(std::uint64_t at) { flies(at).store(false, std::memory_order_release); }
    // Asks the kernel which have left.
    void reap();
    // Chunks that were received and read; the kernel gets as many as it is to have.
    void give_back(std::vector<std::uint64_t> &chunks);

private:
    static constexpr std::size_t RECEIVED_CHUNKS = 8192;
    static constexpr std::size_t CHUNKS = RECEIVED_CHUNKS + SOCKETS * CHUNKS_EACH;

    std::atomic<bool> &flies(std::uint64_t at) { return flies_[at / CHUNK_BYTES - RECEIVED_CHUNKS]; }
    const std::atomic<bool> &flies(std::uint64_t at) const { return flies_[at / CHUNK_BYTES - RECEIVED_CHUNKS]; }
    void open();
    void bind();
    void refill();

    const int index_;
    const unsigned queue_;
    Interface interface_;
    std::size_t longest_ = 0;
    std::uint8_t *memory_ = nullptr;
    Descriptor socket_;
    std::unique_ptr<XdpProgram> program_;
    std::mutex mutex_;
    Ring<std::uint64_t> fill_, completed_;
    std::vector<std::uint64_t> free_;  // to receive into; the last one was used last, and is in the caches
    std::array<std::atomic<bool>, SOCKETS * CHUNKS_EACH> flies_{};
    std::array<bool, SOCKETS> entered_{};
};

}  // namespace netfold
