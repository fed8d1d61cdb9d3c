"""simulator: a cell's schedules executed in virtual time on the cell's network."""

from __future__ import annotations

from dataclasses import replace

from hostlib.protocol.framing import EMULATED
from hostlib.topology.topology import SEND_BUFFER_BYTES
from simulation.answers.answer import answer
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.experiments.scenario import RUNTIME, Scenario
from simulation.experiments.single_iteration import simulate
from simulation.predictors.predictor import Prediction, PredictorSpec
from simulation.simulator.loss import RETRANSMISSION_TIMEOUT_NS
from simulation.simulator.network import Network


def scenario_of(experiment: Experiment, cell: Cell) -> Scenario:
    """A cell, as the simulator plays it.

    Raises:
        TopologyError: the topology is impossible with the cell's hosts.
        HostlibError, SimulationError: there is no such model or trace, or too little is known of it.
    """
    topology = experiment.declared(cell)
    semantics = replace(RUNTIME, bucket_bytes=experiment.replay.bucket_bytes, slots=cell.slots)
    if experiment.emulated:
        semantics = replace(
            semantics,
            framing=EMULATED,
            send_buffer_bytes=round(SEND_BUFFER_BYTES * experiment.replay.shrink),
            # Linux's clock is not slowed down with the rest.
            timeout_ns=round(RETRANSMISSION_TIMEOUT_NS / max(1.0, experiment.replay.dilation)),
        )
    return Scenario(
        experiment.subject(cell),
        cell.mechanism,
        cell.workers,
        Network(experiment.rate_bits_s(cell), topology=topology),
        semantics,
        cell.jobs,
        apart=True,
        shrink=experiment.replay.shrink,
    )


def predict(experiment: Experiment, cell: Cell) -> Prediction | None:
    """Predict by simulation. None for a library's own mechanism and for real training.

    Simulates data-parallel training as DDP does it: the forward pass begins when everything is summed.
    """
    if not _can_play(experiment, cell):
        return None
    return Prediction(simulate(scenario_of(experiment, cell)).iteration_s)


def with_interval(experiment: Experiment, cell: Cell) -> Prediction | None:
    """Like `predict`, with the interval that `netfold ask` has."""
    if not _can_play(experiment, cell):
        return None
    (row,) = answer([scenario_of(experiment, cell)], {}).rows
    return Prediction(*(ms / 1e3 for ms in (row.iteration_ms, row.low_ms, row.high_ms)))


def _can_play(experiment: Experiment, cell: Cell) -> bool:
    library = experiment.mechanism(cell).build is None and experiment.workload(cell).summed
    return experiment.training is None and not library


SPEC = PredictorSpec("simulator", "schedules played in virtual time, event by event", predict, with_interval)
