"""Parser value sets (section 9.6)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import grpc
from p4.v1 import p4runtime_pb2

from emulation.switch.compiler.bmv2_json import in_words
from emulation.switch.p4runtime.codec import KINDS, match_fields, shorten_match
from emulation.switch.p4runtime.context import Loaded, only_modify
from emulation.switch.p4runtime.status import RequestError, invalid, missing

MOST_PREFIXES = 4096  # maximum number of prefixes for the ranges of one set: a parser tries them one after the other


def prefixes(low: int, high: int, width: int) -> list[tuple[int, int]]:
    """Convert a range to the fewest (value, mask) pairs: at most 2 * width - 2."""
    found = []
    while low <= high:
        # The largest block that begins here and does not exceed the range.
        size = low & -low if low else 1 << width
        while low + size - 1 > high:
            size >>= 1
        found.append((low, (1 << width) - size))
        low += size
    return found


class ValueSets:
    """The members of each value set. Writes are under the data plane's writing()."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._entries = {
            number: p4runtime_pb2.ValueSetEntry(value_set_id=number) for number in loaded.schema.value_sets
        }

    def update(self, how: int, entry: p4runtime_pb2.ValueSetEntry) -> None:
        """Replace all members of a set; none empties it.

        Raises:
            RequestError: refused; nothing has changed.
        """
        self._require(entry.value_set_id)
        info, index = self._loaded.schema.value_sets[entry.value_set_id]
        name = f"value set {info.preamble.name}"
        only_modify(how, name)
        if len(entry.members) > info.size > 0:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{name} holds {info.size} members at most")
        kinds = [KINDS.get(field.match_type, "unknown") for field in info.match]
        widths = [field.bitwidth for field in info.match]
        if not widths or "unknown" in kinds:
            raise invalid(f"{name} has no keys, or keys of a kind that is none of {', '.join(KINDS.values())}")
        if any(field.type_name.name in self._loaded.schema.names for field in info.match):
            raise RequestError(grpc.StatusCode.UNIMPLEMENTED, f"{name}: its keys cannot be strings here")
        seen: list[tuple[list[int], list[int]]] = []
        members: list[tuple[list[int], list[int]]] = []
        for member in entry.members:
            values, masks, _ = match_fields(name, info.match, kinds, widths, member.match, self._loaded.schema.names)
            if (values, masks) in seen:
                raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"{name}: a member is given twice")
            seen.append((values, masks))
            keys = [
                prefixes(value, mask, width) if kind == "range" else [(value, mask)]
                for kind, value, mask, width in zip(kinds, values, masks, widths, strict=True)
            ]
            if len(members) + math.prod(map(len, keys)) > MOST_PREFIXES:
                raise RequestError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{name}: its ranges are more than {MOST_PREFIXES} prefixes"
                )
            for each in itertools.product(*keys):
                words = in_words((value for value, _ in each), widths), in_words((mask for _, mask in each), widths)
                members.append(words)
        self._loaded.dataplane.value_set(index, members)
        stored = self._entries[entry.value_set_id] = p4runtime_pb2.ValueSetEntry()
        stored.CopyFrom(entry)
        for member in stored.members:
            shorten_match(member.match)

    def read(self, wanted: p4runtime_pb2.ValueSetEntry) -> Iterator[p4runtime_pb2.Entity]:
        """Value sets with their members; an id of 0 is a wildcard.

        Raises:
            RequestError: there is no such set.
        """
        if wanted.value_set_id:
            self._require(wanted.value_set_id)
        for number, entry in list(self._entries.items()):
            if wanted.value_set_id in (0, number):
                yield p4runtime_pb2.Entity(value_set_entry=entry)

    def _require(self, number: int) -> None:
        if number not in self._entries:
            known = ", ".join(info.preamble.name for info, _ in self._loaded.schema.value_sets.values()) or "none"
            raise missing(f"no value set has id {number:#x}; they are {known}")
