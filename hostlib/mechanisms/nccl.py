"""nccl: NCCL's own all-reduce of CUDA tensors, as a yardstick."""

NAME = "nccl"
SUMMARY = "NCCL's own all-reduce of CUDA tensors, as a yardstick (no schedule of ours)"
DEVICE = "cuda"
