#include "simulator.h"

#include <utility>

namespace netfold::simulation {

Simulator::Simulator(Model model)
    : model_(std::move(model)),
      links_(model_, events_, result_),
      schedules_(model_, events_, links_),
      workers_(model_, events_, result_, schedules_) {
    schedules_.observe(workers_);
    workers_.start();
}

bool Simulator::run(std::uint64_t events) {
    for (; events > 0 && !workers_.all_done() && !events_.empty(); events--) {
        play(events_.pop());
        result_.events++;
    }
    if (workers_.all_done()) return true;
    if (!events_.empty()) return false;
    stuck_ = schedules_.stuck();
    return true;
}

void Simulator::play(const Event &event) {
    std::int32_t node = 0;
    switch (event.type) {
    case computed_event: workers_.computed(event.id); break;
    case delivered_event: {
        const Message message = links_[event.id];
        if (message.windowed)
            links_.acknowledge(event.id);
        else
            links_.release(event.id);
        if (!message.more) schedules_.deliver(*message.state, message.target, message.target_op, message.end);
        break;
    }
    case opened_event: schedules_.opened(event.id); break;
    case woken_event: links_.wake(static_cast<std::int32_t>(event.id)); break;
    case arrived_event: links_.arrive(event.id); break;
    case acknowledged_event: links_.acknowledged(event.id); break;
    case worked_event: schedules_.worked(event.id); break;
    }
    for (State *state; (state = links_.take_handed_over(node)) != nullptr;) schedules_.handed_over(*state, node);
}

}  // namespace netfold::simulation
