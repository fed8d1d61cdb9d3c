// What went through netfold, and what was left to MPI.
#pragma once

#include <stdbool.h>

void count_call(bool taken, long long bytes);

// Print this rank's counts to standard error, in one line.
void print_report(void);
