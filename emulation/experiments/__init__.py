"""Experiments with real packets: cells, workers, measurements; `ready/` has those that come with netfold."""
