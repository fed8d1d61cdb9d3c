"""Gains of strategies, published and simulated: Poseidon's speed-ups, CGDP's overlap, RALP's throughputs.

Network-bound numbers are simulated twice: on links of the nominal bandwidth, and on links as fast as one published cell
of the same network implies (`fitted`). Both papers' parameter servers use only a fraction of their network.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from hostlib.strategies.strategy import choose
from simulation.models import published_times
from simulation.models.architectures import build
from simulation.models.described_model import layers_of
from simulation.models.published_times import PublishedCell
from simulation.models.synthetic_trace import model_layers, model_trace, spread
from simulation.simulator.network import Network
from simulation.simulator.play import Job, play
from simulation.simulator.workload import of_plan

# Bits per second that parameter servers achieved on a node's link, each derived from the published cell named beside
# it.
POSEIDON_FITTED = {10: 5.7e9, 40: 13.4e9}  # from VGG19's and VGG19-22K's WFBP on Caffe
POSEIDON_FITTED_CELLS = {("Caffe", "vgg19", 10, 16, "WFBP"), ("Caffe", "vgg19_22k", 40, 32, "WFBP")}
RALP_GBITS, RALP_FITTED = 56, 1.76e9  # from eight VGG11 jobs with parameter servers
RALP_MACHINES, RALP_WORKERS = 8, 3


def poseidon_8() -> Iterator[PublishedCell]:
    """Speed-ups over one node; every node is a worker and a server, as in the paper."""
    for key, times in published_times.POSEIDON_8.items():
        engine, model, gbits, nodes, how = key
        row = f"{model} on {engine}, {gbits} Gbit/s, {nodes} nodes: {how}"
        yield PublishedCell(
            "poseidon8", row, "nominal", times, poseidon_speedup(engine, model, gbits * 1e9, nodes, how)
        )
        fitted = poseidon_speedup(engine, model, POSEIDON_FITTED[gbits], nodes, how)
        kind = "fitted" if key in POSEIDON_FITTED_CELLS else "predicted"
        yield PublishedCell("poseidon8", row, "as fast as seen", times, fitted, kind)


def poseidon_speedup(engine: str, model: str, bits_s: float, nodes: int, how: str) -> float:
    """Throughput of `nodes` nodes relative to one node."""
    seconds = published_times.POSEIDON_BATCH / published_times.POSEIDON_IMAGES_S[engine, model]
    servers = f"ps:servers={nodes}:assign=even:colocated"
    poseidon, adam = f"poseidon:servers={nodes}:colocated", f"adam:servers={nodes}/{servers}"
    choice, architecture = choose({"WFBP": servers, "Poseidon": poseidon, "Adam": adam}[how]), build(model)
    trace = spread(architecture, seconds / 3, seconds * 2 / 3, first_backward=True)
    plan = choice.plan(trace, layers_of(architecture), nodes, published_times.POSEIDON_BATCH)
    job = Job(of_plan(plan), choice.mechanism, nodes, bare=True)
    return nodes * seconds / play(Network(bits_s), [job]).outcomes[0].iteration_s


def cgdp_2() -> Iterator[PublishedCell]:
    """AlexNet under CGDP: the host's accumulation, at the rates implied by table 3's layers together, and how much of
    it is exposed.
    """
    phases, host = published_times.CGDP_2_MS, published_times.CGDP_3_MS
    trace = spread(build("alexnet"), phases["forward"] / 1e3, phases["backward"] / 1e3, first_backward=True)
    to_host, back = (trace.bytes / ms / 1e6 for ms in (host["copies"] + host["accumulation"], host["back"]))
    choice = choose(f"cgdp:chunk=1:sync=0:accumulation={to_host}:broadcast={back}")
    plan = choice.plan(trace, model_layers("alexnet"), published_times.CGDP_GPUS, published_times.CGDP_BATCH)
    job = Job(of_plan(plan), choice.mechanism, published_times.CGDP_GPUS)
    outcome = play(Network(1e9), [job]).outcomes[0]
    left_us = (outcome.iteration_end_ns[1] - max(outcome.backward_end_ns[1])) / 1e3
    yield PublishedCell("cgdp2", "alexnet, four GPUs", "not hidden (us)", published_times.CGDP_2_LEFT_US, left_us)


def ralp_3() -> Iterator[PublishedCell]:
    """Images per second of all jobs together, and RALP's gain."""
    for (model, jobs), (servers, ralp) in published_times.RALP_3.items():
        for column, bits_s in (("nominal", RALP_GBITS * 1e9), ("as fast as seen", RALP_FITTED)):
            simulated = [ralp_images_s(model, jobs, how, bits_s) for how in ("ps", "ralp/ps")]
            is_fitted = column != "nominal" and (model, jobs) == ("vgg11", 8)
            for how, number, images_s in zip(("parameter servers", "RALP"), (servers, ralp), simulated, strict=True):
                kind = "fitted" if is_fitted and how != "RALP" else "predicted"
                yield PublishedCell("ralp3", f"{model} x {jobs}: {how}, images/s", column, number, images_s, kind)
            yield PublishedCell(
                "ralp3", f"{model} x {jobs}: gain", column, round(ralp / servers, 2), simulated[1] / simulated[0]
            )


@cache
def ralp_images_s(model: str, jobs: int, mechanism: str, bits_s: float) -> float:
    """Jobs on eight machines with four GPUs each; each job uses four machines, assigned to jobs in turn."""
    choice, batch = choose(mechanism), published_times.RALP_3_BATCH
    trace, layers = model_trace(model, batch=batch), model_layers(model)
    workload = of_plan(choice.plan(trace, layers, RALP_WORKERS, batch))
    played = [
        Job(workload, choice.mechanism, RALP_WORKERS, bare=True, hosts=_machines(number, jobs))
        for number in range(jobs)
    ]
    outcomes = play(Network(bits_s), played).outcomes
    return sum(RALP_WORKERS * batch / outcome.iteration_s for outcome in outcomes)


def _machines(job: int, jobs: int) -> tuple[int, ...]:
    """Machines of a job's workers and then of its server: no two servers share one."""
    server = job * RALP_MACHINES // jobs
    return (*((server + step) % RALP_MACHINES for step in range(1, RALP_WORKERS + 1)), server)
