#include "failure.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST = 4096, LONGEST_WAIT_MS = 1000 };

// Launchers read ranks' standard error from pipes, and may drop what they have not read when a rank aborts.
static void wait_until_read(int descriptor) {
    struct stat about;
    if (fstat(descriptor, &about) != 0 || !S_ISFIFO(about.st_mode)) return;
    int unread = 0;
    for (int i = 0; i < LONGEST_WAIT_MS && ioctl(descriptor, FIONREAD, &unread) == 0 && unread > 0; i++) usleep(1000);
}

void fail(const char *format, ...) {
    char line[LONGEST];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "netfold: rank %d: %s\n", rank, line);
    fflush(stderr);
    wait_until_read(STDERR_FILENO);
    PMPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void fail_without_mpi(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("netfold: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(1);
}
