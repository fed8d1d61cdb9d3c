// In front of a program, for tests: after `allocations_left` more (of a negative number: never) memory is exhausted.
#define _GNU_SOURCE
#include <stdlib.h>

#ifndef ALLOCATIONS
#define ALLOCATIONS -1
#endif

long allocations_left = ALLOCATIONS;

static int may_allocate(void) {
    if (allocations_left > 0) allocations_left--;
    else if (allocations_left == 0) return 0;
    return 1;
}

#define malloc(bytes) (may_allocate() ? malloc(bytes) : NULL)
#define calloc(count, bytes) (may_allocate() ? calloc(count, bytes) : NULL)
#define realloc(memory, bytes) (may_allocate() ? realloc(memory, bytes) : NULL)
