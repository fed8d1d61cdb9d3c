"""`hostlib train`: options, the loop, its progress, and how fast it converges."""
