// The variables of the environment that the shim reads itself; the sidecar reads the others.
#pragma once

#include <stdbool.h>

struct Settings {
    long long least_bytes;  // NETFOLD_MPI_MIN: smaller messages are MPI's
    bool strict;            // NETFOLD_STRICT: what netfold does not sum ends the program
    bool verbose;           // NETFOLD_VERBOSE: rank 0 reports at the end
};

// Reads them once, and ends the program where one is not legal.
const struct Settings *settings(void);
