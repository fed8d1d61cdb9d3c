// Integers wider than 126 bits: two's complement in LIMBS limbs, the lowest first. LIMBS is the program's, so that none
// of its expressions overflows but where p4c cuts the result anyhow.
#pragma once

#include "base.h"

#ifndef LIMBS  // Opened by itself.
#define LIMBS 4
#endif

typedef struct {
    uint64_t w[LIMBS];
} big_t;

static inline big_t big_of(i128 value) {
    big_t r;
    r.w[0] = (uint64_t)value;
    r.w[1] = (uint64_t)(value >> 64);
    for (int i = 2; i < LIMBS; i++) r.w[i] = value < 0 ? UINT64_MAX : 0;
    return r;
}
static inline uint64_t big_low(big_t a) { return a.w[0]; }
static inline i128 big_narrow(big_t a) { return (i128)((u128)a.w[1] << 64 | a.w[0]); }
static inline bool big_negative(big_t a) { return a.w[LIMBS - 1] >> 63; }

static inline bool big_truth(big_t a) {
    uint64_t any = 0;
    for (int i = 0; i < LIMBS; i++) any |= a.w[i];
    return any != 0;
}

// As an index: what is no 64-bit number is beyond any size.
static inline uint64_t big_index(big_t a) {
    for (int i = 1; i < LIMBS; i++)
        if (a.w[i] != 0) return UINT64_MAX;
    return a.w[0];
}

// From words, the highest first.
static inline big_t big_words(const uint64_t *words, uint32_t count) {
    big_t r = {{0}};
    for (uint32_t i = 0; i < count; i++) r.w[i] = words[count - 1 - i];
    return r;
}

static inline big_t big_add(big_t a, big_t b) {
    u128 carry = 0;
    for (int i = 0; i < LIMBS; i++) {
        carry += (u128)a.w[i] + b.w[i];
        a.w[i] = (uint64_t)carry;
        carry >>= 64;
    }
    return a;
}
static inline big_t big_not(big_t a) {
    for (int i = 0; i < LIMBS; i++) a.w[i] = ~a.w[i];
    return a;
}
static inline big_t big_neg(big_t a) { return big_add(big_not(a), big_of(1)); }
static inline big_t big_subtract(big_t a, big_t b) { return big_add(a, big_neg(b)); }
static inline big_t big_and(big_t a, big_t b) {
    for (int i = 0; i < LIMBS; i++) a.w[i] &= b.w[i];
    return a;
}
static inline big_t big_or(big_t a, big_t b) {
    for (int i = 0; i < LIMBS; i++) a.w[i] |= b.w[i];
    return a;
}
static inline big_t big_xor(big_t a, big_t b) {
    for (int i = 0; i < LIMBS; i++) a.w[i] ^= b.w[i];
    return a;
}

static inline big_t big_multiply(big_t a, big_t b) {
    big_t r = {{0}};
    for (int i = 0; i < LIMBS; i++) {
        u128 carry = 0;
        for (int j = 0; i + j < LIMBS; j++) {
            carry += (u128)a.w[i] * b.w[j] + r.w[i + j];
            r.w[i + j] = (uint64_t)carry;
            carry >>= 64;
        }
    }
    return r;
}

static inline big_t big_left(big_t a, uint32_t count) {
    big_t r = {{0}};
    for (int i = LIMBS - 1; i >= 0; i--) {
        int from = i - (int)(count / 64);
        if (from < 0) break;
        r.w[i] = a.w[from] << count % 64;
        if (count % 64 && from > 0) r.w[i] |= a.w[from - 1] >> (64 - count % 64);
    }
    return r;
}

static inline big_t big_right(big_t a, uint32_t count) {
    uint64_t sign = big_negative(a) ? UINT64_MAX : 0;
    big_t r;
    for (int i = 0; i < LIMBS; i++) {
        uint32_t from = (uint32_t)i + count / 64;
        uint64_t low = from < LIMBS ? a.w[from] : sign, high = from + 1 < LIMBS ? a.w[from + 1] : sign;
        r.w[i] = count % 64 ? low >> count % 64 | high << (64 - count % 64) : low;
    }
    return r;
}

static inline int big_compare(big_t a, big_t b) {
    if (big_negative(a) != big_negative(b)) return big_negative(a) ? -1 : 1;
    for (int i = LIMBS - 1; i >= 0; i--)
        if (a.w[i] != b.w[i]) return a.w[i] < b.w[i] ? -1 : 1;
    return 0;
}
static inline big_t big_between(big_t value, big_t low, big_t high) {
    return big_compare(value, low) < 0 ? low : big_compare(value, high) > 0 ? high : value;
}

// The low `width` bits, unsigned and signed.
static inline big_t big_cut(big_t a, uint32_t width) {
    for (uint32_t i = 0; i < LIMBS; i++) {
        if (64 * i >= width)
            a.w[i] = 0;
        else if (width - 64 * i < 64)
            a.w[i] &= (UINT64_C(1) << (width - 64 * i)) - 1;
    }
    return a;
}
static inline big_t big_extend(big_t a, uint32_t width) {
    if (width >= 64 * LIMBS) return a;
    a = big_cut(a, width);
    if (a.w[(width - 1) / 64] >> (width - 1) % 64 & 1) a = big_or(a, big_left(big_of(-1), width));
    return a;
}

// Bits of a packet, as get_bits and put_bits.
static inline big_t get_big(const uint8_t *p, uint32_t offset, uint32_t width) {
    big_t r = {{0}};
    for (uint32_t i = 0; 64 * i < width; i++) {
        uint32_t take = width - 64 * i < 64 ? width - 64 * i : 64;
        r.w[i] = get_bits(p, offset + width - 64 * i - take, take);
    }
    return r;
}
static inline void put_big(uint8_t *p, uint32_t offset, uint32_t width, big_t value) {
    for (uint32_t i = 0; 64 * i < width; i++) {
        uint32_t take = width - 64 * i < 64 ? width - 64 * i : 64;
        put_bits(p, offset + width - 64 * i - take, take, value.w[i]);
    }
}
