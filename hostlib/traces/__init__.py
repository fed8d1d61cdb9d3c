"""Traces of training iterations: the format, recording, and reading torch.profiler's."""
