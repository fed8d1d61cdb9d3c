"""simulator: a cell's schedules executed in virtual time on the cell's network."""

from __future__ import annotations

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.protocol.header import frame_bytes
from hostlib.text import units
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.predictors.predictor import Prediction, PredictorSpec
from simulation.simulator.network import Network
from simulation.simulator.play import Job, play

# A full TCP segment with timestamps (RFC 7323) in an Ethernet frame, and its half of an acknowledgement per two
# segments (RFC 5681, 4.2), which shares the link with segments in the other direction.
TCP_PAYLOAD, TCP_FRAME, HALF_ACKNOWLEDGEMENT = 1448, 1514, 33
TURNS = 256  # turns in which streams share a link during one tensor, at most: more is more accurate, but slower
TCP_EFFICIENCY = TCP_PAYLOAD / (TCP_FRAME + HALF_ACKNOWLEDGEMENT)


def network_of(experiment: Experiment, cell: Cell) -> Network:
    """The network for the simulator, with the share of headers on a cell's links.

    Raises:
        TopologyError: the topology is impossible with the cell's hosts.
    """
    mechanism = experiment.mechanism(cell)
    largest = max(tensor.bytes for tensor in experiment.workload(cell).tensors)
    return Network(
        units.bandwidth(cell.bandwidth) / experiment.replay.shrink,
        topology=experiment.declared(cell),
        efficiency=wire_efficiency(mechanism),
        frame_bytes=frame_size(mechanism),
        turn_bytes=max(TCP_PAYLOAD, largest // TURNS),
        slots=cell.slots,
        slot_bytes=frame_bytes()[0],
    )


def predict(experiment: Experiment, cell: Cell) -> Prediction | None:
    """Predict by simulation. None for a library's own mechanism, for lossy links, and for real training.

    Simulates data-parallel training as DDP does it: the forward pass begins when everything is summed.
    """
    mechanism = experiment.mechanism(cell)
    if cell.loss or experiment.training is not None or (mechanism.build is None and experiment.workload(cell).summed):
        return None
    return predict_on(experiment, cell, network_of(experiment, cell))


def predict_on(experiment: Experiment, cell: Cell, network: Network) -> Prediction:
    """Predict a cell on another network than its own, one of network_of with changes."""
    mechanism = experiment.mechanism(cell)
    # Links carry the mechanism's frames; messages with other frames are scaled up by their lower efficiency.
    plan = experiment.plan(cell).with_exchanges_scaled(wire_efficiency(mechanism) / TCP_EFFICIENCY)
    job = Job(
        experiment.bucketed(plan), mechanism, cell.workers, bare=True, pipelined=False, channels=mechanism.channels
    )
    played = play(network, [job] * cell.jobs, apart=True)
    return Prediction(played.outcomes[0].iteration_s)


def frame_size(mechanism: Mechanism) -> int:
    """Bytes of a full frame, of the slot protocol or of TCP."""
    return frame_bytes()[1] if mechanism.needs_fabric else TCP_FRAME


def wire_efficiency(mechanism: Mechanism) -> float:
    """Share of values in a link's traffic in both directions, for frames of the slot protocol or of TCP."""
    if mechanism.needs_fabric:
        payload, frame = frame_bytes()
        return payload / frame
    return TCP_EFFICIENCY


SPEC = PredictorSpec("simulator", "schedules played in virtual time, event by event", predict)
