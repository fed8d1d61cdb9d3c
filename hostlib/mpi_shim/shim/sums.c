// The collectives that sum.

#include <mpi.h>
#include <stdbool.h>
#include <string.h>

#include "communicators.h"
#include "failure.h"
#include "report.h"
#include "settings.h"

// What netfold sums; all ranks pass the same datatype and operation, so all decide alike.
static const char *dtype_of(MPI_Datatype datatype) {
    if (datatype == MPI_FLOAT) return "float32";
    if (datatype == MPI_INT || datatype == MPI_INT32_T) return "int32";
    return NULL;
}

enum { WORD = 4 };  // bytes of an element of either

static void refuse(const char *call, MPI_Datatype datatype) {
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    PMPI_Type_get_name(datatype, name, &length);
    fail(
        "%s: netfold sums MPI_FLOAT, MPI_INT and MPI_INT32_T with MPI_SUM, not this (of %s); "
        "NETFOLD_STRICT=0 leaves it to MPI",
        call, name);
}

// A call of a collective that sums: `shards` times `count` elements of each rank, of whose sum a rank keeps `count`.
struct Sum {
    const char *call, *request;
    const void *values;
    void *result;
    MPI_Count count;
    int shards;
    MPI_Datatype datatype;
    MPI_Op operation;
    MPI_Comm communicator;
};

static bool takes(const struct Sum *sum) {
    if (sum->shards == 0 || sum->count <= 0 || ranks_of(sum->communicator) < 2) return false;
    if (dtype_of(sum->datatype) != NULL && sum->operation == MPI_SUM) {
        return sum->shards * sum->count * WORD >= settings()->least_bytes;
    }
    if (settings()->strict) refuse(sum->call, sum->datatype);
    return false;
}

static bool summed(const struct Sum *sum) {
    if (!takes(sum)) return false;
    char reply[LINE];
    size_t bytes = (size_t)sum->shards * (size_t)sum->count * WORD;
    struct Channel *channel = channel_of(sum->communicator);
    void *words = words_of(channel, bytes);
    memcpy(words, sum->values == MPI_IN_PLACE ? sum->result : sum->values, bytes);
    // A rank may come late, and meanwhile need the progress of others' messages: MPI waits for it, as long as it takes.
    PMPI_Barrier(sum->communicator);
    if (ask(channel, reply, "%s %s %zu", sum->request, dtype_of(sum->datatype), bytes / WORD) != 0) {
        if (settings()->strict) fail("%s: %s; NETFOLD_STRICT=0 leaves it to MPI", sum->call, reply);
        return false;
    }
    memcpy(sum->result, words, (size_t)sum->count * WORD);
    return true;
}

// Whether netfold has done it; counts it in either case.
static bool done(const struct Sum *sum) {
    int size = 0;
    if (sum->datatype != MPI_DATATYPE_NULL) PMPI_Type_size(sum->datatype, &size);
    bool taken = summed(sum);
    count_call(taken, (long long)sum->shards * sum->count * size);
    return taken;
}

static bool all_reduced(const void *values, void *sums, MPI_Count count, MPI_Datatype datatype, MPI_Op operation,
                        MPI_Comm communicator) {
    return done(
        &(struct Sum){"MPI_Allreduce", "all_reduce", values, sums, count, 1, datatype, operation, communicator});
}

static bool scattered(const void *values, void *shard, MPI_Count count, MPI_Datatype datatype, MPI_Op operation,
                      MPI_Comm communicator) {
    return done(&(struct Sum){"MPI_Reduce_scatter_block", "reduce_scatter", values, shard, count,
                              ranks_of(communicator), datatype, operation, communicator});
}

int MPI_Allreduce(const void *values, void *sums, int count, MPI_Datatype datatype, MPI_Op operation,
                  MPI_Comm communicator) {
    if (all_reduced(values, sums, count, datatype, operation, communicator)) return MPI_SUCCESS;
    return PMPI_Allreduce(values, sums, count, datatype, operation, communicator);
}

int MPI_Reduce_scatter_block(const void *values, void *shard, int count, MPI_Datatype datatype, MPI_Op operation,
                             MPI_Comm communicator) {
    if (scattered(values, shard, count, datatype, operation, communicator)) return MPI_SUCCESS;
    return PMPI_Reduce_scatter_block(values, shard, count, datatype, operation, communicator);
}

#if MPI_VERSION >= 4  // with counts of more than 31 bits
int MPI_Allreduce_c(const void *values, void *sums, MPI_Count count, MPI_Datatype datatype, MPI_Op operation,
                    MPI_Comm communicator) {
    if (all_reduced(values, sums, count, datatype, operation, communicator)) return MPI_SUCCESS;
    return PMPI_Allreduce_c(values, sums, count, datatype, operation, communicator);
}

int MPI_Reduce_scatter_block_c(const void *values, void *shard, MPI_Count count, MPI_Datatype datatype,
                               MPI_Op operation, MPI_Comm communicator) {
    if (scattered(values, shard, count, datatype, operation, communicator)) return MPI_SUCCESS;
    return PMPI_Reduce_scatter_block_c(values, shard, count, datatype, operation, communicator);
}
#endif
