"""What controllers do with the running program: P4Runtime 1.4."""
