"""Networks as data: hosts, switches and the cables between them, declared once for simulation, emulation and controller."""
