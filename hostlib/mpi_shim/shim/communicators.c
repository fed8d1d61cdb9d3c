#include "communicators.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

struct Member {
    struct Channel channel;
    struct Member *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct Member *members = NULL;  // the latest is the first
static int key = MPI_KEYVAL_INVALID;   // of the attribute that is a communicator's Member; duplicates do not inherit it

int ranks_of(MPI_Comm communicator) {
    int between = 0, size = 0;
    if (communicator == MPI_COMM_NULL) return 0;
    PMPI_Comm_test_inter(communicator, &between);
    if (!between) PMPI_Comm_size(communicator, &size);
    return size;
}

static struct Member *found(MPI_Comm communicator) {
    struct Member *member = NULL;
    int present = 0;
    pthread_mutex_lock(&lock);
    if (key == MPI_KEYVAL_INVALID) {
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    }
    pthread_mutex_unlock(&lock);
    PMPI_Comm_get_attr(communicator, key, &member, &present);
    return present ? member : NULL;
}

static int on_one_host(MPI_Comm communicator, int size) {
    MPI_Comm neighbours;
    int of_these = 0;
    PMPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &neighbours);
    PMPI_Comm_size(neighbours, &of_these);
    PMPI_Comm_free(&neighbours);
    return of_these == size;
}

static void meet(struct Channel *channel, MPI_Comm communicator) {
    char reply[LINE], store[LINE] = "";
    int rank = 0, size = 0;
    PMPI_Comm_rank(communicator, &rank);
    PMPI_Comm_size(communicator, &size);
    int alone = on_one_host(communicator, size);
    ask(channel, reply, "hello");  // until its sidecar has started, a rank is not ready to meet others
    if (rank == 0) ask(channel, store, "store %s", alone ? "local" : "remote");
    PMPI_Bcast(store, LINE, MPI_CHAR, 0, communicator);
    PMPI_Barrier(communicator);
    ask(channel, reply, "join %d %d %s", rank, size, store);
    channel->multicast_from = atoll(reply);
}

struct Channel *channel_of(MPI_Comm communicator) {
    struct Member *member = found(communicator);
    if (member == NULL) {
        member = calloc(1, sizeof *member);
        if (member == NULL) fail("no memory for a communicator");
        open_channel(&member->channel);
        meet(&member->channel, communicator);
        PMPI_Comm_set_attr(communicator, key, member);
        pthread_mutex_lock(&lock);
        member->next = members;
        members = member;
        pthread_mutex_unlock(&lock);
    }
    return &member->channel;
}

void leave(MPI_Comm communicator) {
    struct Member *member = found(communicator);
    if (member == NULL) return;
    char reply[LINE];
    ask(&member->channel, reply, "leave");
    PMPI_Barrier(communicator);  // the store is rank 0's
    PMPI_Comm_delete_attr(communicator, key);
    pthread_mutex_lock(&lock);
    struct Member **place = &members;
    while (*place != member) place = &(*place)->next;
    *place = member->next;
    pthread_mutex_unlock(&lock);
    close_channel(&member->channel);
    free(member);
}

void leave_all(void) {
    char reply[LINE];
    // All at once: a rank of two groups must not keep one of them waiting for the other.
    for (struct Member *member = members; member != NULL; member = member->next) tell(&member->channel, "leave");
    for (struct Member *member = members; member != NULL; member = member->next) hear(&member->channel, reply);
    PMPI_Barrier(MPI_COMM_WORLD);  // the stores are other ranks'
    while (members != NULL) {
        struct Member *member = members;
        members = member->next;
        close_channel(&member->channel);
        free(member);
    }
    end_sidecar();
}
