// What everything else here is written with: integers, logging, bits of a packet, small arithmetic, a clock.
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef __int128 i128;
typedef unsigned __int128 u128;

// Before a loop whose turns do not touch what other turns write.
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

// A function with such a loop: inlined far down a pipeline, gcc takes it for cold code and keeps it small.
#define VECTOR __attribute__((noinline, hot))

// What log_msg, assert and assume say, and with NF_TRACE what happens to each packet.
#define LOG(...) (fprintf(stderr, "switch: " __VA_ARGS__), fputc('\n', stderr))
#ifdef NF_TRACE
#define TRACE(...) (fprintf(stderr, "trace: " __VA_ARGS__), fputc('\n', stderr))
#else
#define TRACE(...) ((void)0)
#endif

// ---- cache lines ------------------------------------------------------------------------------------------------

typedef uint8_t line_t __attribute__((vector_size(64), may_alias));

static inline void copy_lines(line_t *restrict to, const line_t *restrict from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = from[i];
}
static inline void clear_lines(line_t *lines, size_t count) {
    for (size_t i = 0; i < count; i++) lines[i] = (line_t){0};
}

// ---- bits of a packet, most significant first -------------------------------------------------------------------

static inline uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static inline void store16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
static inline void store32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void store64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}
static inline uint64_t load24(const uint8_t *p) { return (uint64_t)load16(p) << 8 | p[2]; }
static inline uint64_t load40(const uint8_t *p) { return (uint64_t)load32(p) << 8 | p[4]; }
static inline uint64_t load48(const uint8_t *p) { return (uint64_t)load32(p) << 16 | load16(p + 4); }
static inline uint64_t load56(const uint8_t *p) { return (uint64_t)load32(p) << 24 | load24(p + 4); }
static inline void store24(uint8_t *p, uint64_t v) {
    store16(p, (uint16_t)(v >> 8));
    p[2] = (uint8_t)v;
}
static inline void store40(uint8_t *p, uint64_t v) {
    store32(p, (uint32_t)(v >> 8));
    p[4] = (uint8_t)v;
}
static inline void store48(uint8_t *p, uint64_t v) {
    store32(p, (uint32_t)(v >> 16));
    store16(p + 4, (uint16_t)v);
}
static inline void store56(uint8_t *p, uint64_t v) {
    store32(p, (uint32_t)(v >> 24));
    store24(p + 4, v);
}

// `width` (1..64) bits from bit `offset` of p.
static inline uint64_t get_bits(const uint8_t *p, uint32_t offset, uint32_t width) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < width;) {
        uint32_t bit = offset + i, in_byte = bit & 7, take = 8 - in_byte;
        if (take > width - i) take = width - i;
        uint32_t part = (uint32_t)(p[bit >> 3] >> (8 - in_byte - take)) & ((1u << take) - 1);
        value = value << take | part;
        i += take;
    }
    return value;
}

static inline void put_bits(uint8_t *p, uint32_t offset, uint32_t width, uint64_t value) {
    for (uint32_t i = 0; i < width;) {
        uint32_t bit = offset + i, in_byte = bit & 7, take = 8 - in_byte;
        if (take > width - i) take = width - i;
        uint32_t shift = 8 - in_byte - take, mask = ((1u << take) - 1) << shift;
        uint32_t part = (uint32_t)(value >> (width - i - take)) << shift;
        p[bit >> 3] = (uint8_t)((p[bit >> 3] & ~mask) | (part & mask));
        i += take;
    }
}

static inline void copy_bits(uint8_t *to, uint32_t to_offset, const uint8_t *from, uint32_t offset, uint32_t bits) {
    for (uint32_t done = 0; done < bits;) {
        uint32_t take = bits - done < 64 ? bits - done : 64;
        put_bits(to, to_offset + done, take, get_bits(from, offset + done, take));
        done += take;
    }
}

// ---- small arithmetic -------------------------------------------------------------------------------------------

static inline int64_t sign_extend(uint64_t value, uint32_t width) {
    return (int64_t)(value << (64 - width)) >> (64 - width);
}
static inline uint32_t at_most(u128 value, uint32_t most) { return value < most ? (uint32_t)value : most; }
static inline uint64_t at_least(uint64_t value, uint64_t least) { return value > least ? value : least; }
// A shift by so much or more leaves nothing (or the sign) of any operand.
static inline uint32_t shift_count(u128 amount) { return at_most(amount, 1u << 20); }
static inline u128 shift_left(u128 value, uint32_t count) { return count > 127 ? 0 : value << count; }
static inline i128 between(i128 value, i128 low, i128 high) { return value < low ? low : value > high ? high : value; }
static inline bool same_varbit(uint32_t bits, const uint8_t *a, uint32_t other, const uint8_t *b) {
    return bits == other && memcmp(a, b, (bits + 7) / 8) == 0;
}

// ---- memory -----------------------------------------------------------------------------------------------------

// realloc() of what the pointer at `place` points to. False: there is no memory, and it stays as it is.
static inline bool grown(void *place, size_t bytes) {
    void *memory;
    memcpy(&memory, place, sizeof memory);
    memory = realloc(memory, bytes);
    if (memory == NULL) return false;
    memcpy(place, &memory, sizeof memory);
    return true;
}

// A copy for free(); NULL: there is no memory.
static inline void *copied(const void *from, size_t bytes) {
    void *copy = malloc(bytes > 0 ? bytes : 1);
    return copy == NULL ? NULL : memcpy(copy, from, bytes);
}

// ---- time -------------------------------------------------------------------------------------------------------

static inline uint64_t clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t nf_started_us = 0;  // the switch did, by this clock

// As programs see the time.
static inline int64_t age_us(void) { return (int64_t)(clock_us() - nf_started_us); }
