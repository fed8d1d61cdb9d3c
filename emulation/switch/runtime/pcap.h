// A port's frames in a file of pcap's format (draft-ietf-opsawg-pcap), whose header ports/capture.py has written.
#pragma once

#include "base.h"

#include <errno.h>
#include <stdio.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// Where there is no room for a frame, the file ends with the one before, and `*fd` is -1 from then on.
static void write_captured(int *fd, const uint8_t *frame, uint32_t bytes) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint32_t head[4] = {(uint32_t)t.tv_sec, (uint32_t)(t.tv_nsec / 1000), bytes, bytes};
    struct iovec parts[2] = {{head, sizeof head}, {(void *)frame, bytes}};
    ssize_t written = writev(*fd, parts, 2);
    if (written == (ssize_t)(sizeof head + bytes)) return;
    const char *why = written < 0 ? strerror(errno) : "no room";
    off_t end = written > 0 ? lseek(*fd, -written, SEEK_CUR) : -1;
    if (end >= 0 && ftruncate(*fd, end) < 0) why = "no room, and its last frame is cut short";
    fprintf(stderr, "a capture ends here: %s\n", why);
    *fd = -1;
}
