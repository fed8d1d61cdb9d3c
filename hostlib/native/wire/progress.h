// How far a receiver of chunks is: in the vector of its NACKs, and behind the header of its acknowledgements. And how
// far the source is, in its answer. Source: docs/protocol.md, "A stream of chunks".
#pragma once

#include <cstdint>

#include "wire/header.h"

namespace netfold {

struct Progress {
    std::uint16_t rank = 0;  // the receiver's own; a NACK's header's changes from switch to switch
    std::uint64_t low = 0;   // it has everything before; of a source: it has sent everything before
};

inline constexpr std::size_t PROGRESS_WORDS = 3;

inline void write_progress(std::uint8_t *vector, const Progress &progress) {
    put32(vector, progress.rank);
    put32(vector + 4, static_cast<std::uint32_t>(progress.low >> 32));
    put32(vector + 8, static_cast<std::uint32_t>(progress.low));
}

inline Progress read_progress(const std::uint8_t *vector) {
    return {static_cast<std::uint16_t>(get32(vector)),
            static_cast<std::uint64_t>(get32(vector + 4)) << 32 | get32(vector + 8)};
}

}  // namespace netfold
