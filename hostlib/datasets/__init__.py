"""Data sets and who gets which batch."""
