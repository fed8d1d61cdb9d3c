// What comes damaged, and what stays damaged.
#pragma once

#include <cstdint>

namespace netfold {

// Of one slot. What is damaged on its way is off by something else each time. What is off by the same again and again
// was damaged before it was summed or stored: no asking helps.
class Damage {
public:
    // Something came whose check word is off by so much; whether it is now sure that asking does not help.
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
