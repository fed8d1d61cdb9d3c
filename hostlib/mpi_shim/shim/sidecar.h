// The sidecar: the Python process beside a rank that does its collectives (hostlib/mpi_shim/sidecar.py), and channels
// to it.
//
// A channel is a socket for requests and replies, each a line of text in a packet, and memory that both processes have
// mapped, for the words. Different channels may be used at the same time, one channel by one thread at a time.
#pragma once

#include <stddef.h>

enum { LINE = 2048 };  // bytes of a request or reply, with its final zero

struct Channel {
    int socket, memory;
    void *words;               // the shared memory
    size_t size;               // bytes of it
    long long multicast_from;  // gathers and broadcasts of so many bytes are multicast; 0 if none are
};

// Open a channel; starts the sidecar if none is running. Whatever goes wrong ends the program.
void open_channel(struct Channel *channel);

// The shared memory, of at least so many bytes. Its contents are lost when it grows.
void *words_of(struct Channel *channel, size_t bytes);

// Send a request, and wait for the reply: "ok ..." or "refused ...", of which the rest is put into `reply` (LINE
// bytes). Returns 0 for ok, 1 for refused; any other reply, and the sidecar's death, end the program.
int ask(struct Channel *channel, char *reply, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The two halves of ask().
void tell(struct Channel *channel, const char *format, ...) __attribute__((format(printf, 2, 3)));
int hear(struct Channel *channel, char *reply);

void close_channel(struct Channel *channel);

// End the sidecar, if there is one, and wait for it.
void end_sidecar(void);
