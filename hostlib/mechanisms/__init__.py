"""The mechanisms by name; `builtin/` has one file for each."""
