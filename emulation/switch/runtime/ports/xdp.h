// The short way out of an interface: the transmit ring of an AF_XDP socket. One call hands the kernel a batch, which
// goes to the driver past queueing disciplines and taps. Nothing is received here, and no BPF program is needed.
#pragma once

#include "../base.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

// XDP_LONGEST: the kernel skips what is longer than a chunk, which is at most a page. XDP_COMPLETIONS: frames that may
// be on their way before the kernel says that they have arrived.
enum { XDP_SLOTS = 64, XDP_COMPLETIONS = 2048, XDP_LONGEST = 4096 };

typedef struct {
    void *mapped;
    size_t bytes;
    uint32_t *produced, *consumed;
    void *slots;
} xdp_ring_t;

typedef struct {
    int fd;
    uint32_t longest;       // bytes of a frame with a VLAN tag; 0: this way is closed
    const uint8_t *frames;  // the memory that is shared with the kernel
    xdp_ring_t sent, completed;
} xdp_t;

static bool xdp_map(int fd, uint64_t at, const struct xdp_ring_offset *where, size_t bytes, xdp_ring_t *ring) {
    bytes += where->desc;
    uint8_t *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)at);
    if (mapped == MAP_FAILED) return false;
    *ring = (xdp_ring_t){mapped, bytes, (uint32_t *)(mapped + where->producer), (uint32_t *)(mapped + where->consumer),
                         mapped + where->desc};
    return true;
}

// An interface has one such socket for each queue, and is free again a moment after the last one was closed.
static bool bind_patiently(int fd, const struct sockaddr_xdp *to) {
    for (int tries = 0; bind(fd, (const struct sockaddr *)to, sizeof *to) != 0; tries++) {
        if (errno != EBUSY || tries == 50) return false;
        usleep(2000);
    }
    return true;
}

// A socket is set up once, and stays as it is for the next program; an unbound one says ENXIO.
static bool xdp_bind(int fd, int interface, const void *frames, size_t bytes) {
    struct xdp_umem_reg memory = {
        .addr = (uintptr_t)frames, .len = bytes, .chunk_size = XDP_LONGEST, .flags = XDP_UMEM_UNALIGNED_CHUNK_FLAG};
    int slots = XDP_SLOTS, completions = XDP_COMPLETIONS, unused = 1;
    struct sockaddr_xdp to = {.sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY, .sxdp_ifindex = (uint32_t)interface};
    if (setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory) == 0) {
        if (setsockopt(fd, SOL_XDP, XDP_TX_RING, &slots, sizeof slots) != 0
            || setsockopt(fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &completions, sizeof completions) != 0
            || setsockopt(fd, SOL_XDP, XDP_UMEM_FILL_RING, &unused, sizeof unused) != 0)
            return false;
    } else if (errno != EBUSY) {
        return false;
    } else if (sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0 || errno != ENXIO) {
        return true;
    }
    return bind_patiently(fd, &to);
}

static void xdp_close(xdp_t *x) {
    if (x->sent.mapped != NULL) munmap(x->sent.mapped, x->sent.bytes);
    if (x->completed.mapped != NULL) munmap(x->completed.mapped, x->completed.bytes);
    *x = (xdp_t){.fd = -1};
}

// `fd`: an AF_XDP socket, for the interface of the packet socket `packet`; `frames`: `bytes` that outlive it. Closed
// after it where the kernel or the interface cannot.
static void xdp_open(xdp_t *x, int fd, int packet, uint32_t longest, const uint8_t *frames, size_t bytes) {
    struct sockaddr_ll at = {0};
    struct xdp_mmap_offsets offsets;
    socklen_t at_bytes = sizeof at, size = sizeof offsets;
    *x = (xdp_t){.fd = fd, .frames = frames};
    if (longest <= XDP_LONGEST && getsockname(packet, (struct sockaddr *)&at, &at_bytes) == 0
        && xdp_bind(fd, at.sll_ifindex, frames, bytes)
        && getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) == 0
        && xdp_map(fd, XDP_PGOFF_TX_RING, &offsets.tx, XDP_SLOTS * sizeof(struct xdp_desc), &x->sent)
        && xdp_map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, XDP_COMPLETIONS * sizeof(uint64_t), &x->completed))
        x->longest = longest;
    else
        xdp_close(x);
}

// The driver drops silently what a packet socket refuses.
static bool xdp_fits(const xdp_t *x, const uint8_t *frame, uint32_t bytes) {
    return bytes >= ETH_HLEN && bytes <= x->longest - (load16(frame + 12) == ETH_P_8021Q ? 0 : 4);
}

// Until the kernel has taken everything up to slot `end`, or takes nothing any more. A call takes a few dozen; one that
// says EBUSY has lost a frame, as a link without a carrier does.
static bool xdp_push(xdp_t *x, uint32_t end) {
    uint32_t seen = *x->sent.consumed;
    for (uint32_t calls = 0, idle = 0; seen != end && idle < 2 && calls < 2 * XDP_SLOTS; calls++) {
        bool went = sendto(x->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0;
        if (!went && errno != EAGAIN && errno != EBUSY && errno != EINTR) return false;
        bool lost = !went && errno == EBUSY;
        uint32_t now = __atomic_load_n(x->sent.consumed, __ATOMIC_ACQUIRE);
        idle = now == seen && !lost ? idle + 1 : 0;
        seen = now;
        // Which of our frames it needs no more says nothing: it has copied them.
        __atomic_store_n(x->completed.consumed, __atomic_load_n(x->completed.produced, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    }
    return seen == end;
}

// How many of `count` frames went this way, the first ones; frame i is from at[i] to at[i + 1].
static uint32_t xdp_send(xdp_t *x, const uint32_t *at, uint32_t count) {
    uint32_t first = *x->sent.produced, n = 0;
    // What it did not take the last time, and is to skip, has to go first.
    if (!xdp_push(x, first)) return 0;
    struct xdp_desc *slots = x->sent.slots;
    for (; n < count && n < XDP_SLOTS && xdp_fits(x, x->frames + at[n], at[n + 1] - at[n]); n++)
        slots[(first + n) % XDP_SLOTS] = (struct xdp_desc){at[n], at[n + 1] - at[n], 0};
    __atomic_store_n(x->sent.produced, first + n, __ATOMIC_RELEASE);
    if (xdp_push(x, first + n)) return n;
    uint32_t taken = __atomic_load_n(x->sent.consumed, __ATOMIC_ACQUIRE) - first;
    for (uint32_t i = taken; i < n; i++) slots[(first + i) % XDP_SLOTS].addr = UINT64_MAX;
    return taken;
}
