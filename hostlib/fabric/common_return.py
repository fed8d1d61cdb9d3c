"""How hosts agree to return to the fabric, all of them or none, though each of them may be anywhere in its messages.

Only heartbeats are exchanged, by a thread of its own: a host whose caller waits for another host takes part like any
other. Source: docs/failures.md, "Multicast from hosts".

1. A host that has joined the new job says that it is ready, with the job's epoch.
2. A host that sees all of them ready for the same epoch begins no more messages, and says how many it has begun.
3. A host that sees what all have begun returns, with the first message that none of them has begun.

A host whose place is lost may take back that it is ready, until it has said what it has begun. From then on it gives up only
if another one has taken it back: that one will never say what it has begun, so nobody returns. So if one host returns,
all do. What it has said stays in its heartbeat until it is ready for another epoch, for those that look later.
"""

from __future__ import annotations

from collections.abc import Sequence

from hostlib.transport.failure_detector import FailureDetector, Heartbeat


class CommonReturn:
    """One host's part of the agreement, for one return after the other.

    Args:
        hosts: all that return together, by their numbers in the heartbeats.

    Attributes:
        epoch: of the job for which this host has said that it is ready; 0 for none.
        told: whether it has said what it has begun.
    """

    def __init__(self, detector: FailureDetector, hosts: Sequence[int]) -> None:
        self._detector, self._hosts = detector, hosts
        self.epoch = 0
        self.told = False

    def start(self) -> None:
        """Start again after a failure; what was said for the last return still stands."""
        self.epoch, self.told = 0, False

    def be_ready(self, epoch: int) -> bool:
        """Say that this host has joined the job of an epoch, or none: 0. Returns whether all hosts are ready for it."""
        if epoch != self.epoch:
            self.epoch, self.told = epoch, False
            self._detector.publish(ready=epoch, begun=())
            self._detector.exchange()
        return epoch != 0 and all(sign is not None and sign.ready == epoch for sign in self._signs())

    def tell(self, begun: Sequence[int]) -> None:
        """Say how many messages of each stream this host has begun; it begins no more before it returns or gives up."""
        self.told = True
        self._detector.publish(begun=tuple(begun))
        self._detector.exchange()

    def first_messages(self) -> list[int] | None:
        """The number of each stream's first message that goes through the switch, the same on all hosts; None if some
        host has not told yet.
        """
        self._detector.exchange()
        told = [sign.begun if sign is not None and sign.ready == self.epoch else () for sign in self._signs()]
        return [max(each) for each in zip(*told, strict=True)] if all(told) else None

    def close(self) -> None:
        """Take back that this host is ready, if nobody can count on it yet."""
        if self.epoch != 0 and not self.told:
            self._detector.publish(ready=0, begun=())

    @property
    def is_off(self) -> bool:
        """Whether some host has taken back that it is ready; nobody returns."""
        return any(sign is not None and sign.ready != self.epoch for sign in self._signs())

    def _signs(self) -> list[Heartbeat | None]:
        signs = self._detector.heartbeats()
        return [signs[host] for host in self._hosts]
