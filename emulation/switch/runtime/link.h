// What a program may ask about the links behind its ports. ports/port.h knows the answers.
#pragma once

#include "base.h"

// What a packet finds that is to leave by a port now: frames that wait there, and how long it will wait itself if none
// of higher priority come.
typedef struct {
    uint32_t frames;
    int64_t now_us, wait_us;
} queue_t;

static queue_t queue_ahead(uint32_t port, uint32_t priority);
static bool port_up(uint32_t port);
