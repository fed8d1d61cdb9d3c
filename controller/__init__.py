"""The control plane: assigns the switches' slots to jobs, and results to ranks."""
