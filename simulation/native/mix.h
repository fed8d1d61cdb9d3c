// Numbers drawn from what they are for, independent of the order in which they are drawn.
#pragma once

#include <cstdint>

namespace netfold::simulation {

// splitmix64
inline std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

}  // namespace netfold::simulation
