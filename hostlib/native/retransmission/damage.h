// Detects contributions or chunks that stay damaged.
#pragma once

#include <cstdint>

namespace netfold {

// State of one slot. Packets damaged on their way have varying check word errors. An error that repeats was there
// before the sum or the stored copy was made, so retransmissions do not help.
class Damage {
public:
    // Records a packet with this check word error; returns whether it is now certain that retransmissions do not help.
    bool notice(std::uint32_t off_by) {
        times_ = off_by != 0 && off_by == off_by_ ? times_ + 1 : 1;
        off_by_ = off_by;
        return times_ == SPOILED_AFTER;
    }

    void forget() { times_ = 0; }

private:
    static constexpr int SPOILED_AFTER = 3;

    std::uint32_t off_by_ = 0;
    int times_ = 0;  // in a row
};

}  // namespace netfold
