"""Switches: programs, P4Runtime sessions, table entries, and supervision."""
