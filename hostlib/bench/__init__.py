"""Measurements: all-reduces, kernels, devices, and a checkup of this host."""
