"""How often a host's part of a schedule is made, and that it is the right one each time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hostlib.collectives.mechanism_executor import HEADER_TAG, MechanismExecutor
from hostlib.errors import RunError
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.schedules.schedule import Schedule, worker
from hostlib.transport.segment_length import shrunk_segment_bytes

SIZES = [1_000, 70_000, 1_000]
ROUNDS = 50


def counted(name: str) -> tuple[Mechanism, Counter[tuple[Any, ...]]]:
    """A mechanism that counts how often it is built, by what of."""
    mechanism, builds = find(name), Counter[tuple[Any, ...]]()
    build = mechanism.build
    assert build is not None

    # inspect.signature follows __wrapped__: asked for the same parameters as the mechanism's own.
    def counting(**options: Any) -> Schedule:
        builds[tuple(sorted(options.items()))] += 1
        return build(**options)

    counting.__wrapped__ = build  # type: ignore[attr-defined]
    return replace(mechanism, spec=replace(mechanism.spec, schedule=counting)), builds


class Nobody:
    """Transport that are never spoken to: tensors are begun, not finished."""

    channels, shares_link = 1, False

    @property
    def control(self) -> Nobody:
        return self

    def send(self, tensor: Tensor, host: int, tag: int) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("ring", 4),  # the workers, in turns
        ("butterfly", 1),
        ("halving-doubling", 1),
        ("ring:split=no", 4),
        ("ps:servers=3", 12 * 2),  # workers and servers, in turns; two sizes
        ("ps:assign=even", 4 * 2),
    ],
)
def test_a_schedule_is_built_once_for_tensors_that_are_cut_alike(name: str, layouts: int) -> None:
    mechanism, builds = counted(name)
    runtime = MechanismExecutor(mechanism, 4, 0, Nobody())  # type: ignore[arg-type]
    builds.clear()
    turn = 0
    for _ in range(ROUNDS):
        for size in SIZES:
            started = runtime.begin(torch.zeros(size), average=False)
            wanted = find(name).schedule(4, 4 * size, turn)
            assert (len(started.pieces), tuple(step.operation for step in started.steps)) == (
                wanted.pieces,
                wanted.nodes[worker(0)],
            )
            turn += 1
    assert set(builds.values()) == {1}
    assert sum(builds.values()) <= layouts < ROUNDS


def test_turns_begin_again_after_all_that_tensors_are_dealt_out_to() -> None:
    for name in ("ring:split=no", "ps:servers=3", "inagg:servers=2", "ps:servers=3:assign=pairs"):
        mechanism = find(name)
        assert mechanism.build is not None
        for turn in range(30):
            plain = mechanism.build(world_size=4, turn=turn, **_size(mechanism), **mechanism.chosen)
            made = mechanism.schedule(4, size=5_000_000, turn=turn)
            assert {node: made.nodes[node] for node in made.nodes} == {node: plain.nodes[node] for node in plain.nodes}


def _size(mechanism: Mechanism) -> dict[str, int]:
    return {"size": 5_000_000} if "ring" not in mechanism.name else {}


class Recorder(Nobody):
    """A transport that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], int, int]] = []

    @property
    def control(self) -> Recorder:
        return self

    def send(self, tensor: Tensor, host: int, tag: int) -> None:
        self.sent.append((tensor.tolist(), host, tag))


def test_servers_are_told_of_a_tensor_when_it_is_begun_and_in_its_channel() -> None:
    """By the first worker alone; before that, a server could not request what it knew of only after other data."""
    for rank, told in ((0, [([100, 0], 4, 3), ([100, 0], 5, 3)]), (1, [])):
        transport = Recorder()
        runtime = MechanismExecutor(find("ps:servers=2"), 4, rank, transport, channel=1, channels=4)  # type: ignore[arg-type]
        runtime.begin(torch.zeros(100), average=False)
        assert [(words, host, tag // HEADER_TAG) for words, host, tag in transport.sent] == told


class Silent(Recorder):
    """A transport over which nothing comes."""

    def receive(self, tensor: Tensor, host: int, tag: int) -> Silent:
        return self

    def send(self, tensor: Tensor, host: int, tag: int) -> Silent:
        super().send(tensor, host, tag)
        return self

    def wait(self) -> None:
        raise RunError("nothing comes")


@pytest.mark.parametrize(("shrink", "lengths"), [(1, [2**18, 10]), (4, [2**16] * 4 + [10]), (1000, [2**15] * 8 + [10])])
def test_segments_are_shrunk_with_tensors_down_to_128_kib(shrink: float, lengths: list[int]) -> None:
    """A worker's messages, in numbers of float32."""
    transport = Silent()
    segment_bytes = shrunk_segment_bytes(shrink)
    runtime = MechanismExecutor(find("ps"), 2, 1, transport, segment_bytes=segment_bytes)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="nothing comes"):
        runtime.allreduce(torch.zeros(2**18 + 10), average=False)
    assert [len(words) for words, *_ in transport.sent] == lengths
