// v1model's hash algorithms over bytes.
#pragma once

#include "base.h"

// The Internet checksum (RFC 1071): the complement of the one's complement sum of 16-bit words. That is the number as a
// whole modulo 0xffff, so that pieces of it can be summed at any multiple of 16 bits.
static inline uint16_t csum_fold(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}
static inline uint64_t csum_term(uint64_t value) { return (value & 0xffffffff) + (value >> 32); }
static inline uint16_t csum16(const uint8_t *p, uint32_t bytes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2) sum += load16(p + i);
    if (bytes & 1) sum += (uint32_t)p[bytes - 1] << 8;
    return csum_fold(sum);
}

// CRC-16/ARC: polynomial 0x8005, reflected.
static inline uint16_t crc16(const uint8_t *p, uint32_t bytes) {
    uint16_t crc = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xa001 : crc >> 1;
    }
    return crc;
}

// CRC-16/CCITT-FALSE: polynomial 0x1021, from 0xffff.
static inline uint16_t crc_ccitt(const uint8_t *p, uint32_t bytes) {
    uint16_t crc = 0xffff;
    for (uint32_t i = 0; i < bytes; i++) {
        crc ^= (uint16_t)(p[i] << 8);
        for (int bit = 0; bit < 8; bit++) crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

// CRC-32 of IEEE 802.3: polynomial 0x04c11db7, reflected, from and to the complement.
static inline uint32_t crc32(const uint8_t *p, uint32_t bytes) {
    uint32_t crc = UINT32_MAX;
    for (uint32_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    return ~crc;
}

// Any CRC of up to 32 bits, as catalogues describe them.
typedef struct {
    uint32_t width, polynomial, initial, final_xor;
    bool reflect_data, reflect_remainder;
} crc_t;

static inline uint32_t reflected(uint32_t value, uint32_t bits) {
    uint32_t turned = 0;
    for (uint32_t i = 0; i < bits; i++) turned |= (value >> i & 1) << (bits - 1 - i);
    return turned;
}
static inline uint32_t crc_custom(const crc_t *k, const uint8_t *p, uint32_t bytes) {
    // At the top of the word, whatever the width.
    uint32_t up = 32 - k->width, polynomial = k->polynomial << up, crc = k->initial << up;
    for (uint32_t i = 0; i < bytes; i++) {
        crc ^= (k->reflect_data ? reflected(p[i], 8) : p[i]) << 24;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 31 ? crc << 1 ^ polynomial : crc << 1;
    }
    crc >>= up;
    return (k->reflect_remainder ? reflected(crc, k->width) : crc) ^ k->final_xor;
}

static inline uint16_t xor16(const uint8_t *p, uint32_t bytes) {
    uint16_t value = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2) value ^= load16(p + i);
    if (bytes & 1) value ^= (uint16_t)(p[bytes - 1] << 8);
    return value;
}

static inline uint64_t identity_hash(const uint8_t *p, uint32_t bytes) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < bytes && i < 8; i++) value = value << 8 | p[i];
    return value;
}

// splitmix64 (Steele, Lea, Flood 2014): the same numbers in every run.
static uint64_t random_state = 0x853c49e6748fea9bull;
static inline uint64_t random_next(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static inline uint64_t random_between(uint64_t low, uint64_t high) {
    uint64_t span = high - low + 1;
    return span == 0 ? random_next() : low + random_next() % span;
}
static inline uint64_t random_hash(const uint8_t *p, uint32_t bytes) {
    (void)p;
    (void)bytes;
    return random_next();
}
static inline uint64_t round_robin(const uint8_t *p, uint32_t bytes) {
    static uint64_t turn;
    (void)p;
    (void)bytes;
    return turn++;
}
