"""Digests (section 9.8): subscriptions, and the lists that collect messages until they are sent."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
from p4.v1 import p4data_pb2, p4runtime_pb2

from emulation.switch.p4runtime.context import DELETE, INSERT, Loaded
from emulation.switch.p4runtime.p4data import Reader, reader
from emulation.switch.p4runtime.status import RequestError, invalid, missing

# A longer list is sent early (max_list_size 0 leaves the limit to the server).
LONGEST_LIST = 1000


@dataclass(slots=True)
class Digest:
    """A digest that a controller has subscribed to.

    Attributes:
        waiting: distinct messages not yet sent, in order; the first one arrived at `since_s`.
        unacknowledged: list id -> (sent at, messages); not sent again until acknowledged or timed out.
    """

    entry: p4runtime_pb2.DigestEntry
    read: Reader
    waiting: dict[bytes, None] = field(default_factory=dict)
    since_s: float = 0.0
    unacknowledged: dict[int, tuple[float, frozenset[bytes]]] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        return self.entry.config.max_list_size or LONGEST_LIST


class Digests:
    """The subscribed digests."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        names = {each["name"]: each["id"] for each in loaded.program.digests}
        self._infos = {info.preamble.id: info for info in loaded.schema.p4info.digests}
        # The data plane's number -> P4Info's id.
        self._ids = {
            names[info.preamble.name]: number for number, info in self._infos.items() if info.preamble.name in names
        }
        self._wanted: dict[int, Digest] = {}
        self._last_list = 0

    @property
    def active(self) -> bool:
        return bool(self._wanted)

    def update(self, how: int, entry: p4runtime_pb2.DigestEntry) -> None:
        """Switch a digest on (INSERT), change its limits (MODIFY) or switch it off (DELETE).

        Raises:
            RequestError: refused; nothing has changed.
        """
        number = entry.digest_id
        info = self._info(number)
        what, known = f"digest {info.preamble.name}", self._wanted.get(number)
        if how == INSERT and known is not None:
            raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"{what} is already on")
        if how != INSERT and known is None:
            raise missing(f"{what} is not on: INSERT it first")
        if how == DELETE:
            del self._wanted[number]
            return
        config = entry.config
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise invalid(f"{what}: max_timeout_ns, max_list_size and ack_timeout_ns are 0 or more")
        stored = p4runtime_pb2.DigestEntry()
        stored.CopyFrom(entry)
        if known is not None:
            known.entry = stored
        else:
            self._wanted[number] = Digest(stored, reader(info.type_spec, self._loaded.schema.p4info.type_info))

    def _info(self, number: int) -> p4runtime_pb2.p4_dot_config_dot_v1_dot_p4info__pb2.Digest:
        if number not in self._infos:
            known = ", ".join(info.preamble.name for info in self._infos.values()) or "none"
            raise missing(f"no digest has id {number:#x}; they are {known}")
        return self._infos[number]

    def read(self, wanted: p4runtime_pb2.DigestEntry) -> Iterator[p4runtime_pb2.Entity]:
        """The digests that are on; an id of 0 is a wildcard.

        Raises:
            RequestError: there is no such digest.
        """
        if wanted.digest_id:
            self._info(wanted.digest_id)
        for number, digest in list(self._wanted.items()):
            if wanted.digest_id in (0, number):
                yield p4runtime_pb2.Entity(digest_entry=digest.entry)

    # ---- messages ---------------------------------------------------------------------------------------------

    def learn(self, number: int, data: bytes) -> list[p4runtime_pb2.DigestList]:
        """Add a message of the data plane's digest `number`; returns the list if it is full."""
        digest = self._wanted.get(self._ids.get(number, 0))
        if digest is None or data in digest.waiting:
            return []
        if any(data in messages for _, messages in digest.unacknowledged.values()):
            return []
        if not digest.waiting:
            digest.since_s = time.monotonic()
        digest.waiting[data] = None
        full = len(digest.waiting) >= digest.limit or digest.entry.config.max_timeout_ns == 0
        return [self._send(digest)] if full else []

    def due(self) -> list[p4runtime_pb2.DigestList]:
        """The lists that have waited for max_timeout_ns. Forgets messages sent ack_timeout_ns ago."""
        now, lists = time.monotonic(), []
        for digest in self._wanted.values():
            config = digest.entry.config
            for number, (sent_s, _) in list(digest.unacknowledged.items()):
                if (now - sent_s) * 1e9 >= config.ack_timeout_ns:
                    del digest.unacknowledged[number]
            if digest.waiting and (now - digest.since_s) * 1e9 >= config.max_timeout_ns:
                lists.append(self._send(digest))
        return lists

    def _send(self, digest: Digest) -> p4runtime_pb2.DigestList:
        self._last_list += 1
        messages = list(digest.waiting)
        digest.waiting.clear()
        if digest.entry.config.ack_timeout_ns:
            digest.unacknowledged[self._last_list] = (time.monotonic(), frozenset(messages))
        return p4runtime_pb2.DigestList(
            digest_id=digest.entry.digest_id,
            list_id=self._last_list,
            data=[_message(digest.read, each) for each in messages],
            timestamp=time.time_ns(),
        )

    def acknowledge(self, ack: p4runtime_pb2.DigestListAck) -> None:
        """Handle a controller's acknowledgement of a list; an unexpected one is ignored.

        Raises:
            RequestError: there is no such digest.
        """
        if ack.digest_id not in self._infos:
            raise invalid(f"no digest has id {ack.digest_id:#x}")
        if ack.digest_id in self._wanted:
            self._wanted[ack.digest_id].unacknowledged.pop(ack.list_id, None)


def _message(read: Reader, data: bytes) -> p4data_pb2.P4Data:
    return read(iter(struct.unpack(f"={len(data) // 8}Q", data)))
