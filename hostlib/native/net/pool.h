// A pool of the switch's slots, as assigned by the controller.
#pragma once

#include <cstdint>

#include "net/socket.h"

namespace netfold {

// Results come from the switch, or from a server if there is one. If that is the owner of what is summed, it keeps the
// results and sends acknowledgements.
struct Pool {
    std::uint16_t first_slot = 0;
    int slots = 0;
    End server;
    bool acknowledged = false;
    int levels = 1;  // switches that a contribution passes, with the one where the sum is taken
};

}  // namespace netfold
