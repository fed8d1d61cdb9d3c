// How the shim ends a program that cannot go on: with one line.
#pragma once

// Print "netfold: rank R: ..." to standard error and abort all ranks.
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Print "netfold: ..." and exit, where no MPI library can be asked for anything.
_Noreturn void fail_without_mpi(const char *format, ...) __attribute__((format(printf, 1, 2)));
