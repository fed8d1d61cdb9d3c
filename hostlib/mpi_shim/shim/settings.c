#include "settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

enum { LEAST_BYTES = 64 << 10 };  // on one machine MPI is faster below; see docs/mpi.md

static struct Settings read_once;

static const char *text_of(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static bool switched_on(const char *name) {
    const char *text = text_of(name);
    if (text == NULL || strcmp(text, "0") == 0) return false;
    if (strcmp(text, "1") != 0) fail("%s must be 0 or 1, not '%s'", name, text);
    return true;
}

static long long bytes_of(const char *name, long long otherwise) {
    const char *text = text_of(name);
    if (text == NULL) return otherwise;
    char *end = NULL;
    errno = 0;
    long long bytes = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || bytes < 0) fail("%s must be a number of bytes, not '%s'", name, text);
    return bytes;
}

static void read_all(void) {
    read_once.least_bytes = bytes_of("NETFOLD_MPI_MIN", LEAST_BYTES);
    read_once.strict = switched_on("NETFOLD_STRICT");
    read_once.verbose = switched_on("NETFOLD_VERBOSE");
}

const struct Settings *settings(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_all);
    return &read_once;
}
