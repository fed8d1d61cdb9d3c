// Whole numbers in network byte order, at any alignment.
#pragma once

#include <cstdint>
#include <cstring>

namespace netfold {

inline void put8(std::uint8_t *p, std::uint8_t v) { *p = v; }

inline void put16(std::uint8_t *p, std::uint16_t v) {
    v = __builtin_bswap16(v);
    std::memcpy(p, &v, sizeof v);
}

inline void put32(std::uint8_t *p, std::uint32_t v) {
    v = __builtin_bswap32(v);
    std::memcpy(p, &v, sizeof v);
}

inline std::uint8_t get8(const std::uint8_t *p) { return *p; }

inline std::uint16_t get16(const std::uint8_t *p) {
    std::uint16_t v = 0;
    std::memcpy(&v, p, sizeof v);
    return __builtin_bswap16(v);
}

inline std::uint32_t get32(const std::uint8_t *p) {
    std::uint32_t v = 0;
    std::memcpy(&v, p, sizeof v);
    return __builtin_bswap32(v);
}

}  // namespace netfold
