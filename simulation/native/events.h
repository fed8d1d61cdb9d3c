// Virtual time: the queue of events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model.h"

namespace netfold::simulation {

// The order of events at one instant; ties within a type are broken by what a node sees (tensor, operation, distance of
// peer), never by a node's own number: so nodes that do the same stay in step.
enum EventType : std::uint32_t {
    computed_event,
    delivered_event,
    opened_event,
    woken_event,
    arrived_event,
    worked_event,
    acknowledged_event
};

struct Event {
    Time time;
    std::uint64_t tie;
    std::uint32_t id;  // depends on the event's type
    EventType type;
};

class Events {
public:
    Time now() const { return now_; }
    bool empty() const { return heap_.empty(); }

    void push(Time time, EventType type, std::uint64_t tie, std::uint32_t id) {
        heap_.push_back({time, (static_cast<std::uint64_t>(type) << 60) | tie, id, type});
        std::push_heap(heap_.begin(), heap_.end(), later);
    }

    // Removes the earliest event and advances the time to it.
    Event pop() {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        const Event event = heap_.back();
        heap_.pop_back();
        now_ = event.time;
        return event;
    }

private:
    static bool later(const Event &a, const Event &b) { return a.time != b.time ? a.time > b.time : a.tie > b.tie; }

    std::vector<Event> heap_;
    Time now_ = 0;
};

}  // namespace netfold::simulation
