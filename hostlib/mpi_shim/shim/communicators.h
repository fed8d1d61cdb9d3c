// What belongs to each communicator: a channel to the sidecar, in which it is a group of netfold's.
#pragma once

#include <mpi.h>

#include "sidecar.h"

// The number of ranks of a communicator within which collectives are netfold's; none of an intercommunicator, or of
// none: those are MPI's, or errors that it reports.
int ranks_of(MPI_Comm communicator);

// A communicator's channel. At its first use its ranks meet, so all of them make this call at the same point.
struct Channel *channel_of(MPI_Comm communicator);

// The end of a communicator that is about to be freed; all of its ranks make this call.
void leave(MPI_Comm communicator);

// The end of all that are left; all ranks of MPI_COMM_WORLD make this call.
void leave_all(void);
