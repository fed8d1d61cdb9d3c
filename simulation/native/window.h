// When a rank's frames may leave, where it has so many slots: one is used again when the result of what it carried is
// there. Source: docs/protocol.md, "A rank's stream".
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "model.h"

namespace netfold::simulation {

class Window {
public:
    // Slots, and how long after a frame's first bit has left its result is there.
    Window(std::uint64_t slots, Time round_trip) : free_(slots), round_trip_(round_trip) {}

    // Sends frames that are `apart` on the link, the first no earlier than `earliest`; when the first and the last
    // leave.
    std::pair<Time, Time> send(std::uint64_t frames, Time earliest, Time apart) {
        first_ = -1;
        next_ = std::max(next_, earliest);  // A rank's frames leave in their order.
        const std::uint64_t unasked = std::min(free_, frames);
        add({unasked, next_, apart}, apart);
        free_ -= unasked;
        for (frames -= unasked; frames > 0;) {
            // As many as had the slots before that left evenly.
            Run &before = sent_.front();
            const std::uint64_t count = std::min(frames, before.count);
            again({count, before.first + round_trip_, before.apart}, apart);
            // `sent_` has grown at its other end: the reference is valid still.
            before.first += static_cast<Time>(count) * before.apart;
            before.count -= count;
            if (before.count == 0) sent_.pop_front();
            frames -= count;
        }
        return {first_, next_ - apart};
    }

private:
    // Frames that left evenly.
    struct Run {
        std::uint64_t count;
        Time first, apart;
    };

    // Frames of which each may leave at its time of `may`, and when the link has sent the one before.
    void again(const Run &may, Time apart) {
        if (may.first >= next_) return add({may.count, may.first, std::max(may.apart, apart)}, apart);
        if (may.apart <= apart) return add({may.count, next_, apart}, apart);
        const Time late = next_ - may.first, gain = may.apart - apart;
        const std::uint64_t catching_up = std::min(may.count, static_cast<std::uint64_t>((late + gain - 1) / gain));
        add({catching_up, next_, apart}, apart);
        const Time rest = may.first + static_cast<Time>(catching_up) * may.apart;
        add({may.count - catching_up, rest, may.apart}, apart);
    }

    void add(const Run &run, Time apart) {
        if (run.count == 0) return;
        if (first_ < 0) first_ = run.first;
        next_ = run.first + static_cast<Time>(run.count - 1) * run.apart + apart;
        if (!sent_.empty()) {
            Run &last = sent_.back();
            if (last.apart == run.apart && last.first + static_cast<Time>(last.count) * last.apart == run.first) {
                last.count += run.count;
                return;
            }
        }
        sent_.push_back(run);
    }

    std::uint64_t free_;
    Time round_trip_;
    Time first_ = -1, next_ = 0;
    std::deque<Run> sent_;  // what has the slots
};

}  // namespace netfold::simulation
