"""Reports of experiments: a self-contained page, and the files beside it."""
