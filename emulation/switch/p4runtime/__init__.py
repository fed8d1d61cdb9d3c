"""P4Runtime 1.4 for the running program: controllers' reads, writes and streams."""
