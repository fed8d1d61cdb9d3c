#include "failure.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LONGEST = 4096 };

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
