"""Mechanisms by name; `builtin/` has one file for each."""
