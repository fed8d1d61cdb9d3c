// Detects contributions or chunks that stay damaged.
#pragma once

#include <cstdint>

namespace netfold {

// State of one slot. Packets damaged on their way are damaged in varying ways. The same damage again was there before
// the sum or the stored copy was made, so retransmissions do not help.
class Damage {
public:
    // Records a packet that was refused: the error of its check word, and its next exponent, which that does not cover.
    // Returns whether it is now certain that retransmissions do not help.
    bool notice(std::uint32_t off_by, std::uint32_t next_exponent) {
        const bool same = off_by == off_by_ && next_exponent == next_exponent_;
        times_ = times_ > 0 && same ? times_ + 1 : 1;
        off_by_ = off_by;
        next_exponent_ = next_exponent;
        return times_ == SPOILED_AFTER;
    }

    void forget() { times_ = 0; }

private:
    static constexpr int SPOILED_AFTER = 3;

    std::uint32_t off_by_ = 0, next_exponent_ = 0;
    int times_ = 0;  // in a row
};

}  // namespace netfold
