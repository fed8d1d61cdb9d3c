"""simulator: a cell's schedules executed in virtual time on the cell's network."""

from __future__ import annotations

from statistics import median

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.protocol.header import frame_bytes
from hostlib.text import units
from hostlib.topology.topology import SEND_BUFFER_BYTES
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.predictors.predictor import Prediction, PredictorSpec
from simulation.simulator.network import Network
from simulation.simulator.play import Job, play
from simulation.simulator.workload import Variation, in_parts

# A full TCP segment with timestamps (RFC 7323) in an Ethernet frame, and its half of an acknowledgement per two
# segments (RFC 5681, 4.2), which shares the link with segments in the other direction.
TCP_PAYLOAD, TCP_FRAME, HALF_ACKNOWLEDGEMENT = 1448, 1514, 33
TURNS = 4096
PARTS = 64  # in which the fabric's tensors of several jobs share links
TCP_EFFICIENCY = TCP_PAYLOAD / (TCP_FRAME + HALF_ACKNOWLEDGEMENT)
# Hosts never compute in step to the bit, and in some mechanisms (halving-doubling of five) hosts that are a little late
# hold up others: so the prediction is the median of some plays with a little jitter.
JITTER, PLAYS = 0.005, 5


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
        window_bytes=SEND_BUFFER_BYTES,
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
    # Links carry the mechanism's frames; messages with other frames are scaled up by their lower efficiency.
    plan = experiment.plan(cell).with_exchanges_scaled(wire_efficiency(mechanism) / TCP_EFFICIENCY)
    network, workload = network_of(experiment, cell), experiment.bucketed(plan)
    if cell.jobs > 1 and mechanism.needs_fabric and mechanism.channels == 0:
        workload = in_parts(workload, PARTS, network.slot_bytes)

    def slowest_s(seed: int) -> float:
        jobs = [
            Job(workload, mechanism, cell.workers, bare=True, pipelined=False, channels=mechanism.channels,
                variation=Variation(JITTER, seed=seed + number))
            for number in range(cell.jobs)
        ]  # fmt: skip
        return max(outcome.iteration_s for outcome in play(network, jobs, apart=True).outcomes)

    return Prediction(median(slowest_s(1 + cell.jobs * number) for number in range(PLAYS)))


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
