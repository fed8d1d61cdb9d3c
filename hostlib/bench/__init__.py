"""Benchmarks of all-reduces, kernels and devices, and a checkup of this host."""
