"""Switches: their programs, P4Runtime sessions, entries, and supervision."""
