"""PyTorch integration: a torch.distributed backend and a DDP communication hook."""
