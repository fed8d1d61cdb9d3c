"""Emulation: real packets through a real P4 program, on one machine."""
