"""Messages between hosts, over Gloo or MPI, and who is still there."""
