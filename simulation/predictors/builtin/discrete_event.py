"""simulator: the cell's schedules played in virtual time on the cell's network."""

from __future__ import annotations

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.protocol.header import frame_bytes
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.text import units
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.predictors.predictor import Prediction, PredictorSpec
from simulation.simulator.network import Network
from simulation.simulator.play import Job, play

# A full segment of TCP with timestamps (RFC 7323) in an Ethernet frame, and its half of an acknowledgement of two
# (RFC 5681, 4.2) that shares the link with the other direction's segments.
TCP_PAYLOAD, TCP_FRAME, HALF_ACKNOWLEDGEMENT = 1448, 1514, 33
TURNS = 256  # in which streams share a link while a tensor is sent, at most: more is exacter, and takes longer
TCP_EFFICIENCY = TCP_PAYLOAD / (TCP_FRAME + HALF_ACKNOWLEDGEMENT)


def network_of(experiment: Experiment, cell: Cell) -> Network:
    """What the simulator plays a cell on: what its links carry besides headers.

    Raises:
        TopologyError: the topology cannot be, with the cell's hosts.
    """
    mechanism = experiment.mechanism(cell)
    largest = max(tensor.bytes for tensor in experiment.workload(cell).tensors)
    return Network(
        units.bandwidth(cell.bandwidth) / experiment.replay.shrink,
        topology=experiment.declared(cell),
        efficiency=wire_efficiency(mechanism),
        frame_bytes=frame_size(mechanism),
        turn_bytes=max(TCP_PAYLOAD, largest // TURNS),
        slots=SLOTS_PER_POOL,
        slot_bytes=frame_bytes()[0],
    )


def predict(experiment: Experiment, cell: Cell) -> Prediction | None:
    """By simulation; None for what a library's own mechanism sums, where frames are lost, and where computing takes what
    it takes.

    What is played is data-parallel training as DDP does it: the forward pass begins when all is summed.
    """
    mechanism = experiment.mechanism(cell)
    if cell.loss or experiment.training is not None or (mechanism.build is None and experiment.workload(cell).summed):
        return None
    # Links carry the mechanism's frames; what goes by others is as much larger as those are worse.
    plan = experiment.plan(cell).with_exchanges_scaled(wire_efficiency(mechanism) / TCP_EFFICIENCY)
    job = Job(
        experiment.bucketed(plan), mechanism, cell.workers, bare=True, pipelined=False, channels=mechanism.channels
    )
    played = play(network_of(experiment, cell), [job] * cell.jobs, apart=True)
    return Prediction(played.outcomes[0].iteration_s)


def frame_size(mechanism: Mechanism) -> int:
    """Bytes of a full frame: of the slot protocol, or TCP's."""
    return frame_bytes()[1] if mechanism.needs_fabric else TCP_FRAME


def wire_efficiency(mechanism: Mechanism) -> float:
    """Values' share of what a link carries in both directions: frames of the slot protocol, or TCP's."""
    if mechanism.needs_fabric:
        payload, frame = frame_bytes()
        return payload / frame
    return TCP_EFFICIENCY


SPEC = PredictorSpec("simulator", "schedules played in virtual time, event by event", predict)
