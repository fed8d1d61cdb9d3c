// The collectives that the switch multicasts, if the mechanism has it do so. They carry bytes of any datatype.

#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#include "communicators.h"
#include "report.h"
#include "settings.h"

// Bytes of elements, and so the same on all ranks, though one may have them as many integers and another as one array.
static MPI_Count bytes_of(MPI_Count count, MPI_Datatype datatype) {
    int size = 0;
    if (datatype != MPI_DATATYPE_NULL && count > 0) PMPI_Type_size(datatype, &size);
    return count * size;
}

// The channel, if netfold is to carry so many bytes; NULL if MPI is.
static struct Channel *carries(MPI_Count bytes, MPI_Comm communicator) {
    // MPI packs at most as many bytes as an int counts.
    if (bytes <= 0 || bytes > INT_MAX || bytes < settings()->least_bytes || ranks_of(communicator) < 2) return NULL;
    struct Channel *channel = channel_of(communicator);
    return channel->multicast_from > 0 && bytes >= channel->multicast_from ? channel : NULL;
}

static bool broadcast(void *values, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm communicator) {
    MPI_Count bytes = bytes_of(count, datatype);
    struct Channel *channel = root < ranks_of(communicator) ? carries(bytes, communicator) : NULL;
    bool taken = false;
    if (channel != NULL) {
        char reply[LINE];
        int rank = 0, position = 0;
        void *words = words_of(channel, (size_t)bytes);
        PMPI_Comm_rank(communicator, &rank);
        if (rank == root) PMPI_Pack(values, (int)count, datatype, words, (int)bytes, &position, communicator);
        PMPI_Barrier(communicator);  // as for sums
        taken = ask(channel, reply, "broadcast %lld %d", (long long)bytes, root) == 0;
        if (taken && rank != root)
            PMPI_Unpack(words, (int)bytes, &position, values, (int)count, datatype, communicator);
    }
    count_call(taken, bytes);
    return taken;
}

// `count` and `datatype` are what a rank receives of each.
static bool gather(const void *mine, MPI_Count own_count, MPI_Datatype own_datatype, void *all, MPI_Count count,
                   MPI_Datatype datatype, MPI_Comm communicator) {
    int size = ranks_of(communicator);
    MPI_Count part = bytes_of(count, datatype);
    struct Channel *channel = carries(part * size, communicator);
    bool taken = false;
    if (channel != NULL) {
        char reply[LINE];
        int rank = 0, position = 0, bytes = (int)part * size;
        MPI_Aint lower_bound = 0, extent = 0;
        char *words = words_of(channel, (size_t)bytes);
        PMPI_Comm_rank(communicator, &rank);
        if (mine == MPI_IN_PLACE) {
            PMPI_Type_get_extent(datatype, &lower_bound, &extent);
            mine = (const char *)all + rank * count * extent;
            own_count = count;
            own_datatype = datatype;
        }
        PMPI_Pack(mine, (int)own_count, own_datatype, words + rank * part, (int)part, &position, communicator);
        PMPI_Barrier(communicator);
        taken = ask(channel, reply, "all_gather %lld", (long long)part) == 0;
        position = 0;
        if (taken) PMPI_Unpack(words, bytes, &position, all, (int)count * size, datatype, communicator);
    }
    count_call(taken, part);
    return taken;
}

int MPI_Bcast(void *values, int count, MPI_Datatype datatype, int root, MPI_Comm communicator) {
    if (broadcast(values, count, datatype, root, communicator)) return MPI_SUCCESS;
    return PMPI_Bcast(values, count, datatype, root, communicator);
}

int MPI_Allgather(const void *mine, int own_count, MPI_Datatype own_datatype, void *all, int count,
                  MPI_Datatype datatype, MPI_Comm communicator) {
    if (gather(mine, own_count, own_datatype, all, count, datatype, communicator)) return MPI_SUCCESS;
    return PMPI_Allgather(mine, own_count, own_datatype, all, count, datatype, communicator);
}

#if MPI_VERSION >= 4
int MPI_Bcast_c(void *values, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm communicator) {
    if (broadcast(values, count, datatype, root, communicator)) return MPI_SUCCESS;
    return PMPI_Bcast_c(values, count, datatype, root, communicator);
}

int MPI_Allgather_c(const void *mine, MPI_Count own_count, MPI_Datatype own_datatype, void *all, MPI_Count count,
                    MPI_Datatype datatype, MPI_Comm communicator) {
    if (gather(mine, own_count, own_datatype, all, count, datatype, communicator)) return MPI_SUCCESS;
    return PMPI_Allgather_c(mine, own_count, own_datatype, all, count, datatype, communicator);
}
#endif
