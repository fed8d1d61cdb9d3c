"""`hostlib train`: its options, training loop, progress display, and convergence curves."""
