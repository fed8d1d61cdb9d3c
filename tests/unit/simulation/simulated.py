"""What the simulator says of an experiment's cells."""

from __future__ import annotations

from simulation.experiments.experiment_file import Cell, Experiment
from simulation.predictors.predictor import find_predictor


def simulated_s(experiment: Experiment, cell: Cell) -> float | None:
    """An iteration's time; None where the simulator cannot say."""
    predicted = find_predictor().of_cell(experiment, cell)
    return None if predicted is None else predicted.iteration_s
