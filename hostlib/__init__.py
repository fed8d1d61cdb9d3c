"""The host side: mechanisms, wire format, packet engine, PyTorch integration, training."""
