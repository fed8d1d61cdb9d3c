// An MPI program that knows nothing of netfold: collectives of several kinds, each compared with what it must be.
// Rank 0 prints how many were wrong, over all ranks. With an argument all then sum until they are killed.

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LARGEST = 1000003 };

static const int COUNTS[] = {0, 1, 1000, LARGEST};
static int wrong = 0, rank = 0, size = 0;

static void expect(bool right, const char *what, int count) {
    if (right) return;
    wrong++;
    fprintf(stderr, "rank %d: %s of %d elements is wrong\n", rank, what, count);
}

// Quarters have exact sums, in any order.
static float quarter(int of, int i) { return (float)((i * 7 + of * 13) % 1000) / 4.0f; }

static void floats(MPI_Comm communicator, int count, bool in_place) {
    int me, n;
    MPI_Comm_rank(communicator, &me);
    MPI_Comm_size(communicator, &n);
    float *mine = malloc((size_t)count * 4 + 4), *sum = malloc((size_t)count * 4 + 4);
    for (int i = 0; i < count; i++) mine[i] = sum[i] = quarter(me, i);
    MPI_Allreduce(in_place ? MPI_IN_PLACE : mine, sum, count, MPI_FLOAT, MPI_SUM, communicator);
    bool right = true;
    for (int i = 0; i < count; i++) {
        float all = 0;
        for (int of = 0; of < n; of++) all += quarter(of, i);
        right &= sum[i] == all && mine[i] == quarter(me, i);
    }
    expect(right, in_place ? "the sum in place" : "the sum", count);
    free(mine);
    free(sum);
}

static void integers(int count, MPI_Op operation) {
    int *mine = calloc((size_t)count + 1, 4), *result = malloc((size_t)count * 4 + 4);
    for (int i = 0; i < count; i++) mine[i] = i * 101 - rank;
    MPI_Allreduce(mine, result, count, MPI_INT, operation, MPI_COMM_WORLD);
    bool right = true;
    for (int i = 0; i < count; i++) {
        right &= result[i] == (operation == MPI_MAX ? i * 101 : size * i * 101 - size * (size - 1) / 2);
    }
    expect(right, operation == MPI_MAX ? "the maximum" : "the sum of integers", count);
    free(mine);
    free(result);
}

static void doubles(int count) {
    double *mine = malloc((size_t)count * 8 + 8), *sum = malloc((size_t)count * 8 + 8);
    for (int i = 0; i < count; i++) mine[i] = 1e10 + rank;
    MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    bool right = true;
    for (int i = 0; i < count; i++) right &= sum[i] == 1e10 * size + size * (size - 1) / 2;
    expect(right, "the sum of doubles", count);
    free(mine);
    free(sum);
}

static void overflow(int count) {  // wraps around, in the one library as in the other
    int *sum = malloc((size_t)count * 4 + 4);
    for (int i = 0; i < count; i++) sum[i] = rank == 0 ? 0x7fffffff : -rank;
    MPI_Allreduce(MPI_IN_PLACE, sum, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    bool right = true;
    for (int i = 0; i < count; i++) right &= sum[i] == 0x7fffffff - size * (size - 1) / 2;
    expect(right, "the sum of large integers", count);
    free(sum);
}

static void scatter(int count, bool in_place) {
    float *all = malloc((size_t)count * (size_t)size * 4 + 4), *shard = malloc((size_t)count * 4 + 4);
    for (int i = 0; i < count * size; i++) all[i] = quarter(rank, i);
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : all, in_place ? all : shard, count, MPI_FLOAT, MPI_SUM,
                             MPI_COMM_WORLD);
    bool right = true;
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int of = 0; of < size; of++) sum += quarter(of, rank * count + i);
        right &= (in_place ? all : shard)[i] == sum;
    }
    expect(right, "a shard", count);
    free(all);
    free(shard);
}

static void gather(int count, bool in_place) {
    int *mine = calloc((size_t)count + 1, 4), *all = calloc((size_t)count * (size_t)size + 1, 4);
    for (int i = 0; i < count; i++) mine[i] = all[rank * count + i] = rank * 1000 + i;
    MPI_Allgather(in_place ? MPI_IN_PLACE : mine, count, MPI_INT, all, count, MPI_INT, MPI_COMM_WORLD);
    bool right = true;
    for (int i = 0; i < count * size; i++) right &= all[i] == i / count * 1000 + i % count;
    expect(right, "what is gathered", count);
    free(mine);
    free(all);
}

static void broadcast(int count) {  // of every other element
    int root = size - 1;
    int *values = calloc((size_t)count * 2 + 1, 4);
    for (int i = 0; i < 2 * count; i++) values[i] = rank == root ? i * 3 : -1;
    MPI_Datatype spread;
    MPI_Type_vector(count, 1, 2, MPI_INT, &spread);
    MPI_Type_commit(&spread);
    MPI_Bcast(values, 1, spread, root, MPI_COMM_WORLD);
    bool right = true;
    for (int i = 0; i < 2 * count; i++) right &= values[i] == (rank == root || i % 2 == 0 ? i * 3 : -1);
    expect(right, "the broadcast", count);
    MPI_Type_free(&spread);
    free(values);
}

// A rank that waits for a message, whose sender is in the collective already, and meanwhile has no turn in it.
static void late(void) {
    static char message[4 << 20];
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) MPI_Isend(message, sizeof message, MPI_CHAR, 1, 0, MPI_COMM_WORLD, &request);
    if (rank == 1) {
        usleep(300000);
        MPI_Recv(message, sizeof message, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    floats(MPI_COMM_WORLD, 100000, false);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        floats(MPI_COMM_WORLD, COUNTS[i], false);
        floats(MPI_COMM_WORLD, COUNTS[i], true);
        integers(COUNTS[i], MPI_SUM);
        integers(COUNTS[i], MPI_MAX);
        doubles(COUNTS[i]);
        overflow(COUNTS[i]);
        scatter(COUNTS[i] / 4, false);
        scatter(COUNTS[i] / 4, true);
        gather(COUNTS[i] / 4, false);
        gather(COUNTS[i] / 4, true);
        broadcast(COUNTS[i]);
    }
    MPI_Comm halves, copy;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &halves);
    floats(halves, LARGEST, false);
    MPI_Comm_dup(halves, &copy);
    floats(copy, LARGEST, true);
    floats(MPI_COMM_SELF, 1000, false);
    MPI_Comm_free(&halves);
    floats(copy, LARGEST, false);  // left to MPI_Finalize
    late();
    int all = 0;
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("wrong: %d\n", all);
    fflush(stdout);
    while (count > 1) floats(MPI_COMM_WORLD, LARGEST, false);
    MPI_Finalize();
    return 0;
}
