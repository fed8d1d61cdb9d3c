// A ring that is shared with the kernel: one side writes entries, the other reads them (AF_XDP).
#pragma once

#include <linux/if_xdp.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>

namespace netfold {

// This process is the writer or the reader of it, in one thread at a time. `entries` is a power of two.
template <class Entry>
class Ring {
public:
    Ring() = default;
    ~Ring() {
        if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
    }
    Ring(const Ring &) = delete;
    Ring &operator=(const Ring &) = delete;

    // `at`: one of the kernel's offsets (XDP_PGOFF_...). Throws std::system_error.
    void map(int fd, std::uint64_t at, const xdp_ring_offset &where, std::uint32_t entries) {
        bytes_ = where.desc + entries * sizeof(Entry);
        void *mapped =
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(at));
        if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "an AF_XDP ring");
        mapped_ = static_cast<std::uint8_t *>(mapped);
        produced_ = reinterpret_cast<std::uint32_t *>(mapped_ + where.producer);
        consumed_ = reinterpret_cast<std::uint32_t *>(mapped_ + where.consumer);
        flags_ = reinterpret_cast<std::uint32_t *>(mapped_ + where.flags);
        entries_ = reinterpret_cast<Entry *>(mapped_ + where.desc);
        size_ = entries;
        next_ = *consumed_;
    }

    // ---- of the writer; the reader sees what is put at publish() ----
    std::uint32_t waiting() const { return next_ - __atomic_load_n(consumed_, __ATOMIC_ACQUIRE); }
    std::uint32_t room() const { return size_ - waiting(); }
    void put(const Entry &entry) { entries_[next_++ & (size_ - 1)] = entry; }
    void publish() { __atomic_store_n(produced_, next_, __ATOMIC_RELEASE); }
    // What has been published and not read, `i` below waiting().
    const Entry &unread(std::uint32_t i) const { return entries_[(next_ - waiting() + i) & (size_ - 1)]; }
    // Whether the kernel waits to be told that there is something.
    bool sleeps() const { return (__atomic_load_n(flags_, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP) != 0; }

    // ---- of the reader; the writer may use the room of what is taken after release() ----
    std::uint32_t available() const { return __atomic_load_n(produced_, __ATOMIC_ACQUIRE) - next_; }
    const Entry &peek(std::uint32_t i) const { return entries_[(next_ + i) & (size_ - 1)]; }
    void release(std::uint32_t taken) {
        next_ += taken;
        __atomic_store_n(consumed_, next_, __ATOMIC_RELEASE);
    }

private:
    std::uint8_t *mapped_ = nullptr;
    std::size_t bytes_ = 0;
    std::uint32_t *produced_ = nullptr, *consumed_ = nullptr, *flags_ = nullptr;
    Entry *entries_ = nullptr;
    std::uint32_t size_ = 0, next_ = 0;
};

}  // namespace netfold
