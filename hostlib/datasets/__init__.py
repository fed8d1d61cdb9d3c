"""Data sets, and each rank's batches."""
