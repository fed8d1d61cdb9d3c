"""gloo: PyTorch's own all-reduce on the CPU, as a yardstick."""

NAME = "gloo"
SUMMARY = "the library's own all-reduce, as a yardstick (no schedule of ours)"
