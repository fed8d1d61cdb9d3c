// What one packet costs, without any port. Exported: nf_bench_* (called from
// dataplane.py under nf_lock).
#pragma once

#include "base.h"

#include "v1model.h"

static void discard(void *to, uint32_t port, uint32_t priority, const uint8_t *frame, uint32_t bytes) {
    (void)to;
    (void)port;
    (void)priority;
    (void)frame;
    (void)bytes;
}

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

// `count` frames of `bytes` each through the program, one after the other, `rounds` times; each time the 32-bit number
// at `generation_at` is one higher. Returns the nanoseconds of CPU time that it took.
uint64_t nf_bench_program(uint8_t *frames, uint32_t bytes, const uint32_t *ports, uint32_t count,
                          uint32_t generation_at, uint32_t rounds) {
    uint64_t start = cpu_ns();
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < count; i++) {
            uint8_t *frame = frames + (size_t)i * bytes;
            store32(frame + generation_at, load32(frame + generation_at) + 1);
            process_packet(ports[i], frame, bytes, discard, NULL);
        }
    return cpu_ns() - start;
}

// The least that a sum takes: the elements from `payload_at` on turned to host order and added, frame i to the vector
// i % vectors. Returns nanoseconds as above.
uint64_t nf_bench_sums(const uint8_t *frames, uint32_t bytes, uint32_t count, uint32_t payload_at, uint32_t *sums,
                       uint32_t vectors, uint32_t rounds) {
    uint32_t elements = (bytes - payload_at) / 4;
    uint64_t start = cpu_ns();
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < count; i++) {
            const uint8_t *restrict payload = frames + (size_t)i * bytes + payload_at;
            uint32_t *restrict sum = sums + (size_t)(i % vectors) * elements;
            for (uint32_t k = 0; k < elements; k++) sum[k] += load32(payload + 4 * k);
        }
    return cpu_ns() - start;
}
