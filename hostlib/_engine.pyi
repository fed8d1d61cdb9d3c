"""
netfold's packet engine: one rank's end of the slot protocol (docs/protocol.md).
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
import numpy.typing
from numpy.typing import NDArray


class CheckWords:
    """How the members of a job make and test check words; docs/protocol.md."""

    def __init__(self, prime: int, fields: Sequence[int], elements: Sequence[int], ranks: Sequence[int], codes: Sequence[int]) -> None:
        """
        Weights of the fields slot, generation, exponent and epoch and of each element, a term for each rank, and a word for each code.
        """

    def next_word(self, code: int) -> int:
        """A code as next_exponent carries it."""

    def code(self, next_word: int) -> int | None:
        """Its inverse; None for a word that no rank sends."""

class Stalled(TimeoutError):
    """No result from the fabric for the whole deadline."""

class Cancelled(RuntimeError):
    pass

class SumOverflow(OverflowError):
    pass

class TensorsDiffer(ValueError):
    pass

class Engine:
    """
    UDP sockets, each with a thread and a stream of slots over it. Arrays (numpy or torch, 1-D, contiguous; float32, float16, bfloat16, int32) are summed in the order of submit().
    """

    def __init__(self, address: str, ports: Sequence[int] = [0]) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def ports(self) -> list[int]: ...

    @property
    def position(self) -> int:
        """Slots that this rank has been through."""

    def configure(self, fabric_address: str, fabric_port: int, job: int, epoch: int, rank: int, world_size: int, pools: Sequence[tuple[int, int]], elements: int, check: CheckWords, window: int = 0, servers: Sequence[tuple[str, int]] = [], levels: int = 1) -> None:
        """
        A new stream. pools: (first slot, slots) per port; window: packets outstanding, 0 for as many as losses in queues leave; servers: (address, port) per port of whoever sends the results, none for the switch; levels: the switches that a contribution passes, with the one that sums.
        """

    def echo(self, lane: int, fabric_address: str, fabric_port: int, question: bytes, seconds: float) -> int | None:
        """
        Send a packet to the fabric and wait so long until it comes back with nothing changed but its rank, which is returned; None if it does not.
        """

    def submit(self, array: object, average: bool = False) -> int:
        """
        Begin to sum an array over the ranks, in place; the ticket to wait for.
        """

    def wait(self, ticket: int, seconds: float) -> bool:
        """
        Whether it is done, waiting so long. Raises SumOverflow (nothing was summed), Cancelled, TensorsDiffer (likewise, and only configure() helps).
        """

    def allreduce(self, array: object, average: bool, deadline_s: float) -> None:
        """
        submit() and wait(). Raises Stalled, after which only configure() helps.
        """

    def halt(self) -> None:
        """Stop sending and receiving, until configure()."""

    @property
    def halted(self) -> bool: ...

    def silent(self) -> float:
        """Seconds without a result while something is outstanding."""

    def retained(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int32]]:
        """
        After halt(): the slots' last results, as (positions int64 (S,), -1 for none; words int32 (S, 1 + E)).
        """

    def restore(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], words: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """After halt(): take results of other ranks that this one waits for."""

    def unfinished(self) -> list[tuple[int, numpy.typing.NDArray[numpy.uint8]]]:
        """After halt(): (ticket, done uint8 per chunk) of what is not done."""

    def cancel(self) -> None:
        """Make every wait() raise Cancelled."""

    def stats(self) -> dict[str, int]: ...

class Scatter:
    """
    UDP sockets, each with a thread: reduce-scatters in which the switch sums what the others send of a shard, and its owner receives that. Arrays as Engine's.
    """

    def __init__(self, address: str, rank: int, world_size: int) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def ports(self) -> list[int]:
        """By pool."""

    @property
    def position(self) -> int: ...

    def configure(self, fabric_address: str, fabric_port: int, job: int, epoch: int, rank: int, world_size: int, pools: Sequence[tuple[int, int]], elements: int, check: CheckWords, ends: Sequence[Sequence[tuple[str, int]]], window: int = 0) -> None:
        """
        A new stream. pools: (first slot, slots) by owner; ends: by rank, (address, port) for each pool; window: as Engine.configure, of each pool.
        """

    def echo(self, pool: int, fabric_address: str, fabric_port: int, question: bytes, seconds: float) -> int | None:
        """As Engine.echo."""

    def submit(self, array: object, sums: object, average: bool) -> int:
        """
        Begin to sum an array, a shard for each rank; `sums` gets the others' sum of this rank's. The ticket.
        """

    def wait(self, ticket: int, seconds: float) -> bool:
        """
        Whether the others have what they need of this rank, and it has their sum. Raises as Engine.wait.
        """

    def halt(self) -> None:
        """Stop sending and receiving, until configure()."""

    def silent(self) -> float:
        """Seconds in which nothing came though something is outstanding."""

    def cancel(self) -> None:
        """Make every wait() raise Cancelled."""

    def stats(self) -> dict[str, int]: ...

class SharedSum:
    """
    Sums of one host's ranks in memory that they share, zeros at first and aligned to 64 bytes. Arrays (numpy or torch, 1-D, contiguous; float32, int32) are summed in the ranks' order.
    """

    def __init__(self, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], rank: int, ranks: int, part_bytes: int, spins: bool = True) -> None: ...

    @staticmethod
    def bytes(ranks: int, part_bytes: int) -> int:
        """That the memory must have."""

    def begin(self, array: object, average: bool = False) -> None:
        """
        Begin to sum an array, in place; it must stay where it is until that is done.
        """

    def begin_reduce(self, array: object) -> None:
        """
        Likewise, but rank 0 alone has the sum; what the others have then is not defined.
        """

    def begin_broadcast(self, array: object, note: int = 0) -> None:
        """Likewise; all have rank 0's values then, and its note."""

    @property
    def note(self) -> int:
        """Rank 0's, of the last array that is done."""

    def go_on(self, seconds: float) -> bool:
        """
        Whether it is done; False after so long without another rank's progress.
        """

    def differing(self) -> list[tuple[int, bool, bool]]:
        """
        Elements, whether they are int32, and whether they are averaged, of each rank, if the ranks sum different tensors. Nothing can be summed any more then.
        """

    @property
    def steps(self) -> int:
        """How often the ranks have met."""

    def missing(self) -> list[int]:
        """Ranks that this one waits for."""

    def departed(self) -> list[int]:
        """Ranks that have left."""

    def leave(self) -> None:
        """Tell the others that this rank sums no more."""

    def beat(self) -> None:
        """Tell the others that this rank makes them wait, and will come."""

    def beats(self) -> list[int]:
        """How often each rank has told that."""

    @property
    def summing_ns(self) -> int:
        """Time until sums were there, since the start."""

    @property
    def reading_ns(self) -> int:
        """Time from sums to arrays."""

class Server:
    """
    A UDP socket with a thread that sends back what the switch has summed, as it came.
    """

    def __init__(self, address: str, port: int = 0) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int: ...

    def configure(self, fabric_address: str, fabric_port: int, job: int, epoch: int, world_size: int, first_slot: int, slots: int, elements: int, check: CheckWords, workers: Sequence[tuple[str, int]] = []) -> None:
        """Answer from now on: the switch, or each of the workers, by rank."""

    def echo(self, fabric_address: str, fabric_port: int, question: bytes, seconds: float) -> int | None:
        """As Engine.echo; halts first."""

    def halt(self) -> None:
        """Stop answering, until configure()."""

    def stats(self) -> dict[str, int]: ...

class Reflector:
    """
    A UDP socket with a thread that stands in for the fabric of a job of one rank: every contribution comes back as its result, untested. It ends with the object.
    """

    def __init__(self, address: str, port: int = 0) -> None: ...

    @property
    def port(self) -> int: ...

def bare_stream(address: str, reflector_address: str, reflector_port: int, packet_bytes: int, seconds: float) -> float:
    """
    Send packets to a Reflector and receive them back for so long, on the path that NETFOLD_PATH names; packets per second of this thread's CPU time.
    """

class Multicaster:
    """
    A UDP socket with a thread: streams of messages through the switch's multicast, whose source is this host or another. Messages are uint8 arrays (numpy or torch, contiguous).
    """

    def __init__(self, address: str, port: int = 0) -> None: ...

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def position(self) -> int:
        """Chunks that this host has been through, of all streams."""

    def configure(self, fabric_address: str, fabric_port: int, job: int, epoch: int, rank: int, sends_as: int, streams: Sequence[tuple[int, int, Sequence[int], Sequence[tuple[str, int]]]], elements: int, check: CheckWords) -> None:
        """
        A new life of all streams: (first slot, slots, ranks of the receivers if this host is the source, else none, and (address, port) of each of them, or of the source) each. rank: what its NACKs say; sends_as: what its chunks say.
        """

    def send(self, stream: int, bytes: object) -> int:
        """Begin to send; the ticket to wait for."""

    def receive(self, stream: int, bytes: object) -> int:
        """Wait for the stream's next message, which has this size; the ticket."""

    def echo(self, fabric_address: str, fabric_port: int, question: bytes, seconds: float) -> int | None:
        """As Engine.echo; halts first."""

    def wait(self, ticket: int, seconds: float) -> bool:
        """Whether a message has left whole, or is here whole, waiting so long."""

    def halt(self) -> None:
        """Stop sending and receiving, until configure()."""

    def granted(self, stream: int) -> int:
        """
        Chunks of a stream, from its beginning on, that every receiver has; its source asks.
        """

    def stats(self) -> dict[str, int]: ...

def kernels_name() -> str:
    """For which CPUs the loops that run here are compiled."""

def block_code(dtype: str, x: object) -> int: ...

def may_overflow(code: int, world_size: int) -> bool: ...

def pack(dtype: str, x: object, wire: object, code: int, world_size: int, check: CheckWords) -> int: ...

def weigh(wire: object, magnitude: int, check: CheckWords) -> tuple[int, bool]:
    """
    The vector's part of the check word, and whether no element exceeds the magnitude.
    """

def possible(dtype: str, wire: object, code: int, world_size: int, check: CheckWords) -> bool:
    """Whether these can be a sum's elements."""

def unpack(dtype: str, wire: object, x: object, code: int, world_size: int, average: bool) -> None: ...

def quantise(dtype: str, x: object, q: object, code: int, world_size: int) -> None: ...

def dequantise(dtype: str, sum: object, x: object, code: int, world_size: int, average: bool) -> None: ...

def pack_pass(dtype: str, x: object, codes: object, ring: object, elements: int, world_size: int, ahead: int, check: CheckWords) -> int: ...

def weigh_pass(ring: object, packets: int, elements: int, check: CheckWords) -> int: ...

def unpack_pass(dtype: str, ring: object, x: object, codes: object, elements: int, world_size: int, average: bool, check: CheckWords) -> int: ...

def own_codes(x: object, elements: int, slots: int, lanes: int, world_size: int) -> numpy.typing.NDArray[numpy.uint16]:
    """
    The code under which this rank would have each block sent, uint16 (blocks,).
    """

def quantise_blocks(x: object, elements: int, codes: numpy.typing.NDArray[numpy.uint16], world_size: int) -> numpy.typing.NDArray[numpy.int32]:
    """int32 (N,) under the agreed codes."""

def dequantise_blocks(sum: numpy.typing.NDArray[numpy.int32], x: object, elements: int, codes: numpy.typing.NDArray[numpy.uint16], world_size: int, average: bool, done: numpy.typing.NDArray[numpy.uint8]) -> None:
    """The way back, into x; blocks that are done stay as they are."""
