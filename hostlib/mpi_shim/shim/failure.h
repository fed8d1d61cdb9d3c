// How the shim ends a program that cannot go on: one line, and MPI_Abort.
#pragma once

// Print "netfold: rank R: ..." to standard error and abort all ranks. Does not return.
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
