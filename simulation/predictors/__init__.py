"""The predictors of an iteration's time by name; `builtin/` has one file for each."""
