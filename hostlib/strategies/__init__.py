"""What is synchronised when, and where layers live: each file registers one strategy (see hostlib.strategy). Torch-free."""
