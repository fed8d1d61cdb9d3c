"""What PyTorch sees: a torch.distributed backend and a DDP communication hook."""
