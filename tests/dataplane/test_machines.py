"""Any interleaving of losses, duplicates, reorderings, aborts and new epochs: the right sum, or nothing.

Hypothesis drives tests/dataplane/network.py. A failure prints the steps and a seed that replays them. Set
NETFOLD_EXAMPLES for a longer run.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controller.artifact import load_artifact
from hostlib import layout
from tests.dataplane.network import ELEMENTS, Network, Wrong
from tests.dataplane.target import Embedded

EXAMPLES = int(os.environ.get("NETFOLD_EXAMPLES", "100"))
BUDGET = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
# Where a stream's generations begin: at 0, and so that they pass 2^31 and 2^32.
BEGINNINGS = (0, 2**31 - 2, 2**32 - 2)


@cache
def switch(number: int, program: bytes | None = None) -> Embedded:
    """Loaded once; each example resets it."""
    return Embedded(ELEMENTS, program)


class Machine(RuleBasedStateMachine):
    """One job, in one life after the other."""

    kind = "sum"
    leaves = (0, 0)
    ranks = (1, 5)
    program: bytes | None = None

    def __init__(self) -> None:
        super().__init__()
        self.network: Network | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        leaves = data.draw(st.integers(*self.leaves), "leaves")
        self.network = Network(
            [switch(n, self.program) for n in range(1 + leaves)],
            self.kind,
            data.draw(st.integers(*self.ranks), "ranks per leaf"),
            data.draw(st.sampled_from([1, 2, 4]), "slots"),
            data.draw(st.sampled_from(BEGINNINGS), "first generation"),
        )

    @precondition(lambda self: self.network and self.network.life.limit < 16)
    @rule(more=st.sampled_from([1, 1, 2, 9]))
    def another_tensor(self, more: int) -> None:
        self.network.life.limit += more

    @precondition(lambda self: self.network and self.kind != "chunk")
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        ready = [rank for rank in self.network.life.ranks if self.network.may_send(rank) is not None]
        if ready:
            rank = data.draw(st.sampled_from(ready), "rank")
            self.network.send(rank, self.network.may_send(rank))

    @precondition(lambda self: self.network and self.kind == "chunk")
    @rule()
    def serve(self) -> None:
        position = self.network.may_serve()
        if position is not None:
            self.network.serve(position)

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        waiting = [(rank, p) for rank in self.network.life.ranks for p in self.network.missing(rank)]
        if waiting:
            self.network.send(*data.draw(st.sampled_from(waiting), "rank and position"), again=True)

    @precondition(lambda self: self.network and self.network.flying)
    @rule(data=st.data(), how=st.sampled_from(["deliver", "deliver", "deliver", "deliver", "lose", "duplicate"]))
    def packet(self, data: st.DataObject, how: str) -> None:
        index = data.draw(st.integers(0, len(self.network.flying) - 1), "which")
        if how == "lose":
            self.network.flying.pop(index)
        else:
            self.network.deliver(index, keep=how == "duplicate")

    @precondition(lambda self: self.network and len(self.network.lives) < 3)
    @rule(sure=st.integers(0, 9))
    def abort(self, sure: int) -> None:
        if sure == 0:
            self.network.abort()

    def teardown(self) -> None:
        if self.network:
            try:
                self.network.settle()
                # Every packet became one event or one counted drop.
                assert self.network.counted() == self.network.delivered
            finally:
                self.network.close()


class Tree(Machine):
    leaves, ranks = (2, 3), (1, 3)


class Server(Machine):
    kind, ranks = "server", (1, 4)


class ServedTree(Machine):
    kind, leaves, ranks = "server", (2, 2), (1, 2)


class Shared(Machine):
    kind, ranks = "shared", (1, 4)


class Chunks(Machine):
    kind, ranks = "chunk", (1, 4)


class ChunkTree(Machine):
    kind, leaves, ranks = "chunk", (2, 2), (1, 2)


@pytest.mark.timeout(60 + 12 * EXAMPLES)
@pytest.mark.parametrize("machine", [Machine, Tree, Server, ServedTree, Shared, Chunks, ChunkTree])
def test_nothing_but_the_sum(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=BUDGET)


# ---- the same machines on programs with one instruction missing -------------------------------------------------


def without(register: str, primitive: str) -> bytes:
    """The program with every such access to a register taken out."""
    program = json.loads(load_artifact(ELEMENTS).program)
    removed = 0
    for action in program["actions"]:
        kept = [p for p in action["primitives"] if not _touches(p, register, primitive)]
        removed += len(action["primitives"]) - len(kept)
        action["primitives"] = kept
    assert removed, f"{primitive} of {register} is nowhere in the program"
    return json.dumps(program).encode()


def _touches(primitive: dict[str, Any], register: str, op: str) -> bool:
    return primitive["op"] == op and any(
        p["type"] == "register_array" and p["value"].endswith(register) for p in primitive["parameters"]
    )


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("register", "primitive"),
    [
        ("slot.bitmaps", "register_write"),
        ("slot.generations", "register_write"),
        ("slot.epochs", "register_write"),
        ("vector.checks", "register_write"),
        ("vector.values_1f", "register_read"),
        ("exponent.exponents", "register_read"),
    ],
)
def test_a_planted_error_is_found(register: str, primitive: str) -> None:
    class Planted(Machine):
        program = without(register, primitive)
        ranks = (2, 3)

    with pytest.raises((Wrong, AssertionError)):
        run_state_machine_as_test(Planted, settings=settings(BUDGET, max_examples=100, print_blob=False))


# ---- jobs that overbook one pool --------------------------------------------------------------------------------


@pytest.fixture
def overbooked() -> Iterator[list[Network]]:
    """Three jobs on the same shared slots of one switch."""
    only = Embedded(ELEMENTS)
    first = Network([only], "shared", 3, 4, 0)
    yield [first, *(Network([only], "shared", 3, 4, 0, beside=first) for _ in range(2))]
    only.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_jobs_that_overbook_the_pool_all_get_their_sums(overbooked: list[Network], loss: float, seed: int) -> None:
    draw = random.Random(f"{loss} {seed}")
    for network in overbooked:
        network.life.limit = 20
    for _ in range(4000):
        network = draw.choice(overbooked)
        rank = draw.randrange(3)
        position = network.may_send(rank)
        if position is not None:
            network.send(rank, position)
        elif network.flying:
            index = draw.randrange(len(network.flying))
            if draw.random() < loss:
                network.flying.pop(index)
            else:
                network.deliver(index)
        elif network.missing(rank):
            network.send(rank, draw.choice(network.missing(rank)), again=True)
    for network in overbooked:
        network.settle()
    events = overbooked[0].switches["s0"].counts()["events"]
    assert events[layout.EVENT_COLLISION] > 0 and events[layout.EVENT_SENT_UP] > 0
