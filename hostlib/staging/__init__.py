"""Staging of tensors between a device, the host's memory and the packet engine."""
