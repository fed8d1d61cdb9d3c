#include "report.h"

#include <stdatomic.h>
#include <stdio.h>

// [false] of MPI, [true] of netfold
static _Atomic long long calls[2], bytes_of_calls[2];

void count_call(bool taken, long long bytes) {
    calls[taken]++;
    bytes_of_calls[taken] += bytes;
}

void print_report(void) {
    fprintf(stderr,
            "netfold: rank 0: %lld calls with %lld bytes went through netfold, %lld with %lld bytes through MPI\n",
            calls[true], bytes_of_calls[true], calls[false], bytes_of_calls[false]);
}
