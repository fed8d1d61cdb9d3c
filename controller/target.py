"""What a kind of switch can do: one record for all that the controller asks of it."""

from __future__ import annotations

from dataclasses import dataclass

from controller.jobs.switch_share import HOSTS_PER_SWITCH
from hostlib.protocol import constants


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of switch.

    Attributes:
        name: in topologies and options.
        architecture: of the P4 programs for it, and in their files' names.
        elements: int32 per packet, of the programs that there are.
        usual_elements: where nobody asks for others.
        ranks: most members of a job on one switch, which are ranks and switches below.
        slots: of its program; jobs use those that every target has.
        pipes: a slot's packets come in by ports of one of them.
        reads_registers: P4Runtime reads them.
    """

    name: str
    architecture: str
    elements: tuple[int, ...]
    usual_elements: int
    ranks: int
    slots: int
    pipes: int
    reads_registers: bool


V1MODEL = Target("v1model", "v1model", (64, 256, 1024, 2048), 256, HOSTS_PER_SWITCH, constants.SLOTS, 1, True)
# docs/tofino.md says why one rank less, and why not its registers: P4Info has no TNA registers.
TOFINO = Target("tofino", "tna", (32, 64), 64, HOSTS_PER_SWITCH - 1, 2 * constants.SLOTS, 4, False)
TOFINO2 = Target("tofino2", "t2na", (64,), 64, HOSTS_PER_SWITCH - 1, 2 * constants.SLOTS, 4, False)
TARGETS = {each.name: each for each in (V1MODEL, TOFINO, TOFINO2)}
