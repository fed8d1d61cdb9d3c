"""Tensors on their way between a device, the host's memory and the packet engine."""
