"""Traces of training iterations: file format, recording, and import from torch.profiler."""
