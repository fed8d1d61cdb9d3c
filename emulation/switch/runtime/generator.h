// The ranks of a job on packet sockets: each contributes to a window of slots, and to a slot's next generation when it
// has the result of the one before. For `emulation bench`, which writes the offsets (..._AT) and CHECK_GENERATION in
// front. Follows runtime.h in the translation unit.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

enum { MAX_RANKS = 32, MAX_FRAME = 2048, BATCH = 64 };

typedef struct {
    uint32_t ranks, slots, bytes;
    const int *fds;
    uint8_t *frames;           // [rank][slot]: the contribution that is under way
    uint32_t *checks;          // [rank][slot]: the check word of its result
    const uint8_t *sum;        // the elements of every result
    uint64_t again_ns;         // without a result for so long, everything is sent again
    uint64_t results, wrong, resent, ns;
} generator_t;

static struct mmsghdr tx[MAX_RANKS][BATCH];
static struct iovec tx_iov[MAX_RANKS][BATCH];
static uint32_t queued[MAX_RANKS];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint8_t *contribution(const generator_t *g, uint32_t rank, uint32_t slot) {
    return g->frames + ((size_t)rank * g->slots + slot) * g->bytes;
}

static void flush(const generator_t *g, uint32_t rank) {
    uint32_t sent = 0;
    while (sent < queued[rank]) {
        int n = sendmmsg(g->fds[rank], tx[rank] + sent, queued[rank] - sent, 0);
        if (n <= 0) break;  // Lost: it will be sent again.
        sent += (uint32_t)n;
    }
    queued[rank] = 0;
}

static void send_slot(const generator_t *g, uint32_t rank, uint32_t slot) {
    if (queued[rank] == BATCH) flush(g, rank);
    uint32_t i = queued[rank]++;
    tx_iov[rank][i] = (struct iovec){contribution(g, rank, slot), g->bytes};
    tx[rank][i].msg_hdr = (struct msghdr){.msg_iov = &tx_iov[rank][i], .msg_iovlen = 1};
}

static void send_all(const generator_t *g) {
    for (uint32_t slot = 0; slot < g->slots; slot++)
        for (uint32_t rank = 0; rank < g->ranks; rank++) send_slot(g, rank, slot);
}

static void handle(generator_t *g, uint32_t rank, const uint8_t *frame, uint32_t bytes) {
    if (bytes != g->bytes || frame[OPERATION_AT] != OPERATION_RESULT) return;
    uint32_t slot = load16(frame + SLOT_AT);
    if (slot >= g->slots) return;
    uint8_t *own = contribution(g, rank, slot);
    uint32_t *check = &g->checks[rank * g->slots + slot];
    if (load32(frame + GENERATION_AT) != load32(own + GENERATION_AT)) return;
    if (load32(frame + CHECK_AT) != *check || memcmp(frame + PAYLOAD_AT, g->sum, bytes - PAYLOAD_AT) != 0) g->wrong++;
    g->results++;
    store32(own + GENERATION_AT, load32(own + GENERATION_AT) + 1);
    store32(own + CHECK_AT, load32(own + CHECK_AT) + CHECK_GENERATION);
    *check += g->ranks * CHECK_GENERATION;
    send_slot(g, rank, slot);
}

// Go on for `run_ns`; what is under way at the end is awaited by the next call.
void ng_run(generator_t *g, uint64_t run_ns) {
    static uint8_t bytes[BATCH][MAX_FRAME];
    static struct mmsghdr rx[BATCH];
    static struct iovec iov[BATCH];
    struct pollfd ready[MAX_RANKS];
    for (uint32_t i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){bytes[i], MAX_FRAME};
        rx[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    for (uint32_t rank = 0; rank < g->ranks; rank++) ready[rank] = (struct pollfd){g->fds[rank], POLLIN, 0};
    uint64_t start = now_ns(), now = start, heard = g->ns == 0 ? 0 : start;
    while (now - start < run_ns) {
        if (now - heard >= g->again_ns) {
            if (heard != 0) g->resent += (uint64_t)g->ranks * g->slots;
            heard = now;
            send_all(g);
            for (uint32_t rank = 0; rank < g->ranks; rank++) flush(g, rank);
        }
        struct timespec timeout = {0, (long)(g->again_ns - (now - heard))};
        if (ppoll(ready, g->ranks, &timeout, NULL) > 0) {
            uint64_t before = g->results;
            for (uint32_t rank = 0; rank < g->ranks; rank++) {
                if (ready[rank].revents == 0) continue;
                int n = recvmmsg(g->fds[rank], rx, BATCH, MSG_DONTWAIT, NULL);
                for (int i = 0; i < n; i++) handle(g, rank, bytes[i], rx[i].msg_len);
                flush(g, rank);
            }
            if (g->results != before) heard = now;
        }
        now = now_ns();
    }
    g->ns += now - start;
}
