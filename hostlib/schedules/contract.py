"""The collectives, and what each promises: which ranks give their values of a piece, and which end with the sum of them.

A rank that gives has values of its own before the collective; whatever else is in its memory is undefined. A rank that
takes must end with every contribution exactly once; what others end with does not matter.
"""

from __future__ import annotations

from enum import Enum

from hostlib.errors import ScheduleError, UnknownNameError


class Collective(Enum):
    """The collectives, named as MPI and NCCL name them. One tensor is cut into a shard for each rank.

    REDUCE_SCATTER: rank r ends with the sum of shard r.
    ALL_GATHER: rank r begins with shard r; all end with all shards.
    BROADCAST, REDUCE: from and to one rank, the root.
    ALL_TO_ALL: each rank's tensor has a shard for every rank. The schedule's tensor is all ranks' tensors after each
        other: block s * n + d goes from rank s to rank d.
    """

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"

    def __str__(self) -> str:
        return self.value

    @property
    def words(self) -> str:
        """What texts call it."""
        return self.value.replace("_", "-")

    @property
    def has_root(self) -> bool:
        return self in (Collective.BROADCAST, Collective.REDUCE)

    @property
    def sums(self) -> bool:
        """Whether values are added; otherwise they are only moved, whatever their type."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

    def blocks(self, world_size: int) -> int:
        """Number of parts with givers and takers of their own; a schedule's pieces are a multiple of it."""
        match self:
            case Collective.REDUCE_SCATTER | Collective.ALL_GATHER:
                return world_size
            case Collective.ALL_TO_ALL:
                return world_size**2
        return 1

    def tensor_bytes(self, size: int, world_size: int) -> int:
        """Bytes of the schedule's tensor, if each rank's whole tensor has `size` bytes."""
        return size * world_size if self is Collective.ALL_TO_ALL else size


def find_collective(name: str) -> Collective:
    """Find a collective by its name. Raises UnknownNameError: there is none of this name."""
    try:
        return Collective(name)
    except ValueError:
        raise UnknownNameError("collective", name, (each.value for each in Collective)) from None


def ends_of(collective: Collective, world_size: int, block: int, root: int = 0) -> tuple[range, range]:
    """The ranks that give a block, and those that take it; see Collective.blocks."""
    everybody, single = range(world_size), range(root, root + 1)
    match collective:
        case Collective.BROADCAST:
            return single, everybody
        case Collective.REDUCE:
            return everybody, single
        case Collective.REDUCE_SCATTER:
            return everybody, range(block, block + 1)
        case Collective.ALL_GATHER:
            return range(block, block + 1), everybody
        case Collective.ALL_TO_ALL:
            source, destination = divmod(block, world_size)
            return range(source, source + 1), range(destination, destination + 1)
    return everybody, everybody


def block_of(collective: Collective, world_size: int, pieces: int, piece: int) -> int:
    """The block that a piece belongs to; consecutive pieces make up a block.

    Raises:
        ScheduleError: so many pieces do not make up equal blocks.
    """
    blocks = collective.blocks(world_size)
    if pieces % blocks:
        raise ScheduleError(f"pieces of {collective} must be a multiple of {blocks}, not {pieces}")
    return piece * blocks // pieces
