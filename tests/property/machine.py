"""What may happen to jobs and packets, as Hypothesis state machines over network.py."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hostlib.protocol import constants
from tests.property.frame import ELEMENTS
from tests.property.model import Fault, ModelSwitch
from tests.property.network import UP_PORT, Network, Shape
from tests.property.switch import Switch, Twin

# Where streams begin: at 0 as real hosts do, and so that generations pass 2^31 and 2^32.
BEGINNINGS = (0, 2**31 - 3, 2**31 - 2, 2**32 - 2, 2**32 - 1)
TENSORS = st.sampled_from([1, 1, ELEMENTS, ELEMENTS + 1, 3 * ELEMENTS, 9 * ELEMENTS - 5])
HEADER_BITS, PAYLOAD_BITS = 8 * constants.HEADER_BYTES, 8 * (constants.HEADER_BYTES + 4 * ELEMENTS)
BITS = st.sampled_from(range(HEADER_BITS)) | st.sampled_from(range(HEADER_BITS, PAYLOAD_BITS))
SEEDS = st.integers(0, 2**32 - 1)
DATA = st.data()

totals: Counter[str] = Counter()  # of all machines in this process, for the summary of a long campaign


class SlotMachine(RuleBasedStateMachine):
    """Jobs on one switch or a tree; what varies is said by subclasses."""

    kind = "sum"
    leaves, ranks, seats = (0, 0), (1, 5), (1, 2)
    fault: Fault | None = None  # of a model that stands in for the program

    def __init__(self) -> None:
        super().__init__()
        self.network: Network | None = None

    @property
    def net(self) -> Network:
        if self.network is None:
            raise ValueError("begin() comes first")
        return self.network

    def _switch(self, number: int, address: str, others: dict[str, int], hosts: dict[int, int]) -> Switch:
        if self.fault is None:
            return Twin(number, address, others, hosts)
        return ModelSwitch(address, others, hosts, self.fault)

    @initialize(data=DATA)
    def begin(self, data: st.DataObject) -> None:
        shape = Shape(
            self.kind,
            data.draw(st.integers(*self.leaves), "leaves"),
            data.draw(st.integers(*self.ranks), "ranks"),
            data.draw(st.integers(*self.seats), "seats"),
            data.draw(st.sampled_from([1, 2, 4]), "window"),
            data.draw(st.sampled_from(BEGINNINGS), "first generation"),
        )
        self.network = Network(shape, self._switch)
        for seat in range(shape.seats):
            self.network.add_tensor(seat, data.draw(TENSORS, "elements"))

    def _index(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.net.flying) - 1), "which packet")

    def _seat(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.net.seats) - 1), "which seat")

    # ---- hosts ------------------------------------------------------------------------------------------------------

    @rule(data=DATA, elements=TENSORS)
    def another_tensor(self, data: st.DataObject, elements: int) -> None:
        self.net.add_tensor(self._seat(data), elements)

    @precondition(lambda self: self.net.senders())
    @rule(data=DATA)
    def send(self, data: st.DataObject) -> None:
        senders = self.net.senders()
        self.net.send(senders[data.draw(st.integers(0, len(senders) - 1), "which sender")])

    @precondition(lambda self: self.net.senders())
    @rule()
    def everybody_sends(self) -> None:
        for sender in self.net.senders():
            self.net.send(sender)

    @precondition(lambda self: self.net.waiting())
    @rule(data=DATA)
    def one_asks_again(self, data: st.DataObject) -> None:
        waiting = self.net.waiting()
        self.net.resend(*waiting[data.draw(st.integers(0, len(waiting) - 1), "who")])

    @precondition(lambda self: self.net.waiting())
    @rule()
    def everybody_asks_again(self) -> None:
        for host, slot in self.net.waiting():
            self.net.resend(host, slot)

    # ---- packets ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA)
    def deliver(self, data: st.DataObject) -> None:
        self.net.deliver(self._index(data))

    @precondition(lambda self: self.net.flying)
    @rule(most=st.integers(1, 20), newest_first=st.booleans())
    def deliver_some(self, most: int, newest_first: bool) -> None:
        for _ in range(min(most, len(self.net.flying))):
            self.net.deliver(-1 if newest_first else 0)

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA)
    def lose(self, data: st.DataObject) -> None:
        self.net.lose(self._index(data))

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA, times=st.integers(1, 2))
    def duplicate(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            self.net.duplicate(self._index(data))

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA)
    def hold(self, data: st.DataObject) -> None:
        self.net.hold(self._index(data))

    @precondition(lambda self: self.net.held)
    @rule(data=DATA)
    def release(self, data: st.DataObject) -> None:
        self.net.release(data.draw(st.integers(0, len(self.net.held) - 1), "which packet"))

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA, bits=st.sets(BITS, min_size=1, max_size=4))
    def damage(self, data: st.DataObject, bits: set[int]) -> None:
        self.net.damage(self._index(data), bits)

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA, port=st.integers(1, UP_PORT), udp_port=st.sampled_from([0, 0, 1, 0x8000]))
    def forge(self, data: st.DataObject, port: int, udp_port: int) -> None:
        self.net.forge(self._index(data), port, udp_port)

    @precondition(lambda self: self.net.flying)
    @rule(data=DATA, port=st.integers(1, UP_PORT - 1))
    def speak_as_fabric(self, data: st.DataObject, port: int) -> None:
        self.net.speak_as_fabric(self._index(data), port)

    @precondition(lambda self: self.kind != "shared" and self.net.flying)
    @rule(data=DATA, ahead=st.integers(2**10, 2**29))
    def hurry(self, data: st.DataObject, ahead: int) -> None:
        self.net.hurry(self._index(data), ahead)

    @rule(seed=SEEDS, steps=st.integers(1, 200))
    def storm(self, seed: int, steps: int) -> None:
        self.net.storm(seed, steps)

    # ---- lives ------------------------------------------------------------------------------------------------------

    @rule(data=DATA, seed=SEEDS, lingers=st.integers(0, 30), other_id=st.booleans(), offset=st.integers(0, 3))
    def abort(self, data: st.DataObject, seed: int, lingers: int, other_id: bool, offset: int) -> None:
        """A job ends half-way, first at one switch and later at all; another takes its slots. Packets fly on."""
        seat = self._seat(data)
        self.net.remove(seat, data.draw(st.sampled_from(self.net.names), "which switch first"))
        self.net.storm(seed, lingers)
        self.net.restart(seat, other_id, offset)
        self.net.add_tensor(seat, data.draw(TENSORS, "elements"))

    def teardown(self) -> None:
        if self.network is None:
            return
        for number, seat in enumerate(self.network.seats):
            if seat.job.spoiled:
                self.network.restart(number, other_id=False, offset=0)
                self.network.add_tensor(number, ELEMENTS)
        rounds = self.network.settle()
        # What comes when all is over changes nothing of what follows.
        while self.network.held:
            self.network.release(0)
        for number in range(len(self.network.seats)):
            self.network.add_tensor(number, ELEMENTS)
        rounds += self.network.settle()
        totals.update(
            {
                "networks": 1,
                "lives": self.network.lives,
                "packets through a switch": self.network.packets,
                "results believed": self.network.results,
                f"settled after {rounds} rounds": 1,
            }
        )
        names = {
            index: name for name, index in [*constants.EVENTS.items(), *constants.DROPS.items(), ("passing by", -1)]
        }
        totals.update({names[index]: n for index, n in self.network.counts.items()})


class OneSwitch(SlotMachine):
    """Sums are made where the ranks are."""


class Tree(SlotMachine):
    """2-4 leaves under one switch."""

    leaves, ranks, seats = (2, 4), (1, 3), (1, 1)


class ViaServer(SlotMachine):
    """A server finishes the sums, of one switch or of a tree."""

    kind, leaves, ranks, seats = "server", (0, 2), (1, 3), (1, 2)


class Shared(SlotMachine):
    """Jobs that overbook the same slots."""

    kind, ranks, seats = "shared", (1, 3), (2, 3)

    hammered = False

    @precondition(lambda self: not self.hammered and any(flying.to for flying in self.net.flying))
    @rule(data=DATA, times=st.integers(constants.CREDIT - 2, constants.CREDIT + 2))
    def hammer(self, data: st.DataObject, times: int) -> None:
        """Until an owner that is silent loses its slot; once, for it takes time."""
        self.hammered = True
        bound = [n for n, flying in enumerate(self.net.flying) if flying.to]
        self.net.hammer(data.draw(st.sampled_from(bound), "which packet"), times)


class Chunks(SlotMachine):
    """A server's words, to one switch's ranks or through a tree."""

    kind, leaves, ranks, seats = "chunk", (0, 3), (1, 3), (1, 2)
