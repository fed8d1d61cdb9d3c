#define _GNU_SOURCE
#include "sidecar.h"

#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "failure.h"

#ifndef NETFOLD_PYTHON
#error "NETFOLD_PYTHON is the Python that has netfold, as hostlib/mpi_shim/shim_library.py defines it"
#endif

enum { CONTROL = 3 };  // the sidecar's descriptor of its control socket

extern char **environ;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int control = -1;  // carries channels to the sidecar, and its end when it closes
static pid_t process = -1;

// The program's environment without the shim itself, which is no business of the sidecar's.
static char **without_preload(void) {
    size_t count = 0, kept = 0;
    while (environ[count] != NULL) count++;
    char **copy = calloc(count + 1, sizeof *copy);
    if (copy == NULL) fail("no memory for the sidecar's environment");
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "LD_PRELOAD=", strlen("LD_PRELOAD=")) != 0) copy[kept++] = environ[i];
    }
    return copy;
}

static void start(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair: %s", strerror(errno));
    // The program's folder may hold modules of any name: they are not the sidecar's.
    char *words[] = {NETFOLD_PYTHON, "-c",
                     "import sys; sys.path = [folder for folder in sys.path if folder]; "
                     "from hostlib.mpi_shim.sidecar import main; main()",
                     NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], CONTROL);
    char **environment = without_preload();
    int error = posix_spawn(&process, NETFOLD_PYTHON, &actions, NULL, words, environment);
    if (error != 0)
        fail("%s does not start: %s; make the shim again: netfold mpi-shim", NETFOLD_PYTHON, strerror(error));
    free(environment);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    control = ends[0];
}

// Pass the far end of a channel's socket, and its memory, to the sidecar.
static void hand_over(int far_end, int memory) {
    int both[2] = {far_end, memory};
    union {
        char bytes[CMSG_SPACE(sizeof both)];
        struct cmsghdr aligned;
    } ancillary = {.bytes = {0}};
    char byte = 0;
    struct iovec content = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &content, .msg_iovlen = 1, .msg_control = ancillary.bytes, .msg_controllen = sizeof ancillary.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof both);
    memcpy(CMSG_DATA(header), both, sizeof both);
    if (sendmsg(control, &message, MSG_NOSIGNAL) < 0) fail("the sidecar has ended: %s", strerror(errno));
}

void open_channel(struct Channel *channel) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair: %s", strerror(errno));
    int memory = memfd_create("netfold", MFD_CLOEXEC);
    if (memory < 0) fail("memfd_create: %s", strerror(errno));
    *channel = (struct Channel){.socket = ends[0], .memory = memory};
    pthread_mutex_lock(&lock);
    if (control < 0) start();
    hand_over(ends[1], memory);
    pthread_mutex_unlock(&lock);
    close(ends[1]);
}

void *words_of(struct Channel *channel, size_t bytes) {
    if (bytes > channel->size) {
        if (channel->words != NULL) munmap(channel->words, channel->size);
        if (ftruncate(channel->memory, (off_t)bytes) != 0)
            fail("%zu bytes of shared memory: %s", bytes, strerror(errno));
        channel->words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, channel->memory, 0);
        if (channel->words == MAP_FAILED) fail("%zu bytes of shared memory: %s", bytes, strerror(errno));
        channel->size = bytes;
    }
    return channel->words;
}

static void send_line(struct Channel *channel, const char *format, va_list arguments) {
    char line[LINE];
    int length = vsnprintf(line, sizeof line, format, arguments);
    // If the sidecar has ended, hear() says so.
    send(channel->socket, line, length < LINE ? (size_t)length : LINE - 1, MSG_NOSIGNAL);
}

void tell(struct Channel *channel, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    send_line(channel, format, arguments);
    va_end(arguments);
}

int hear(struct Channel *channel, char *reply) {
    char line[LINE];
    ssize_t length;
    do {
        length = recv(channel->socket, line, sizeof line - 1, 0);
    } while (length < 0 && errno == EINTR);
    if (length <= 0) fail("its sidecar, process %d, has ended", (int)process);
    line[length] = '\0';
    char *rest = strchr(line, ' ');
    if (rest != NULL) *rest++ = '\0';
    bool ok = strcmp(line, "ok") == 0;
    if (!ok && strcmp(line, "refused") != 0) fail("%s", rest != NULL ? rest : line);
    strcpy(reply, rest != NULL ? rest : "");
    return ok ? 0 : 1;
}

int ask(struct Channel *channel, char *reply, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    send_line(channel, format, arguments);
    va_end(arguments);
    return hear(channel, reply);
}

void close_channel(struct Channel *channel) {
    if (channel->words != NULL) munmap(channel->words, channel->size);
    close(channel->memory);
    close(channel->socket);
}

void end_sidecar(void) {
    if (control < 0) return;
    close(control);
    control = -1;
    while (waitpid(process, NULL, 0) < 0 && errno == EINTR) continue;
}
