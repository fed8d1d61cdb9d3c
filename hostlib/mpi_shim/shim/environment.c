// The beginning and the end of a program's MPI.

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "communicators.h"
#include "failure.h"
#include "report.h"
#include "settings.h"

#if defined(OPEN_MPI)
#define FAMILY "Open MPI"
#elif defined(MPICH_VERSION)
#define FAMILY "MPICH"
#else
#define FAMILY ""
#endif

// A shim of another MPI library would see handles that mean nothing to it, or ranks that do not see each other.
static void require_own_library(void) {
    static const char *const SIZES[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};  // as mpirun says it
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0, size = 0;
    PMPI_Get_library_version(library, &length);
    library[strcspn(library, ",\n")] = '\0';
    if (strstr(library, FAMILY) == NULL) {
        fail_without_mpi("this shim was made for " FAMILY ", the program has %s: netfold mpi-shim --mpicc ITS_MPICC",
                         library);
    }
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        const char *said = getenv(SIZES[i]);
        if (said != NULL && atoi(said) != size) {
            fail(
                "mpirun has started %s ranks, %s sees %d: make the shim with the mpicc that belongs to mpirun: "
                "netfold mpi-shim --mpicc ITS_MPICC",
                said, library, size);
        }
    }
}

static int begun(int error) {
    if (error == MPI_SUCCESS) {
        require_own_library();
        settings();
    }
    return error;
}

int MPI_Init(int *count, char ***words) { return begun(PMPI_Init(count, words)); }

int MPI_Init_thread(int *count, char ***words, int required, int *provided) {
    return begun(PMPI_Init_thread(count, words, required, provided));
}

int MPI_Finalize(void) {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    leave_all();
    if (rank == 0 && settings()->verbose) print_report();
    return PMPI_Finalize();
}

int MPI_Comm_free(MPI_Comm *communicator) {
    if (*communicator != MPI_COMM_NULL) leave(*communicator);
    return PMPI_Comm_free(communicator);
}

int MPI_Comm_disconnect(MPI_Comm *communicator) {
    if (*communicator != MPI_COMM_NULL) leave(*communicator);
    return PMPI_Comm_disconnect(communicator);
}
