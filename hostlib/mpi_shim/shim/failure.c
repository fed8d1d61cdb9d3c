#include "failure.h"

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void fail(const char *format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    int running = 0, rank = 0;
    PMPI_Initialized(&running);
    if (!running) {
        fprintf(stderr, "netfold: %s\n", line);
        exit(1);
    }
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "netfold: rank %d: %s\n", rank, line);
    fflush(stderr);
    PMPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}
