"""Messages between hosts over Gloo or MPI, and failure detection."""
