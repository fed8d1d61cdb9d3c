"""Networks as data: hosts, switches and cables, declared once for simulation, emulation and controller."""
