"""The training strategies by name; `builtin/` has one folder for each."""
