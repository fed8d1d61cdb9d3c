"""Experiments with real packets: cells, workers, measurements; `ready/` has netfold's own experiments."""
