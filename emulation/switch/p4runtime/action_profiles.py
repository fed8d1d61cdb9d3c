"""Action profiles and selectors: members, groups, one-shot action sets (section 9.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2

from emulation.errors import SwitchMemoryError
from emulation.switch.dataplane import Chosen
from emulation.switch.p4runtime.bytestrings import shortest
from emulation.switch.p4runtime.codec import TableInfo, shorten_action
from emulation.switch.p4runtime.context import DELETE, INSERT, Loaded
from emulation.switch.p4runtime.status import RequestError, invalid, missing
from emulation.switch.ports.port_spec import HIGHEST_PORT

# maximum number of entries of a group's members, by their weights
LARGEST_GROUP = 65536
Weighed = tuple[int, int | None]  # a member's handle, and the port that it watches


@dataclass(slots=True)
class Member:
    """A member, its handle in the data plane, and the number of table entries and groups that refer to it."""

    message: p4runtime_pb2.ActionProfileMember
    handle: int
    entries: int = 0
    groups: int = 0


@dataclass(slots=True)
class Group:
    """A group, its handle in the data plane, and the number of table entries that refer to it."""

    message: p4runtime_pb2.ActionProfileGroup
    handle: int
    entries: int = 0


@dataclass(slots=True)
class Handles:
    """Handles of the data plane, numbered from 1; released ones are reused."""

    free: list[int] = field(default_factory=list)
    used: int = 0

    @contextmanager
    def taking(self, count: int) -> Iterator[list[int]]:
        """Allocate handles; they are released if the data plane runs out of memory."""
        taken = [self.free.pop() if self.free else self._next() for _ in range(count)]
        try:
            yield taken
        except SwitchMemoryError:
            self.free += taken
            raise

    def _next(self) -> int:
        self.used += 1
        return self.used


@dataclass(slots=True)
class ProfileState:
    """One action profile; `one_shots` maps the handle of a one-shot group to those of its members."""

    info: Any
    index: int
    tables: list[TableInfo]
    members: dict[int, Member] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    one_shots: dict[int, list[int]] = field(default_factory=dict)
    member_handles: Handles = field(default_factory=Handles)
    group_handles: Handles = field(default_factory=Handles)

    @property
    def name(self) -> str:
        return str(self.info.preamble.name)

    @property
    def weighs_members(self) -> bool:
        """Whether a group's size is the number of its members, not the sum of their weights."""
        return bool(self.info.WhichOneof("selector_size_semantics") == "sum_of_members")


class Profiles:
    """The members and groups of all action profiles. Writes are under the data plane's writing()."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._profiles = {number: ProfileState(*known) for number, known in loaded.schema.profiles.items()}
        self._of_table = {
            table.info.preamble.id: profile for profile in self._profiles.values() for table in profile.tables
        }

    def _profile(self, number: int) -> ProfileState:
        if number not in self._profiles:
            known = ", ".join(sorted(p.name for p in self._profiles.values())) or "none"
            raise missing(f"no action profile has id {number:#x}; they are {known}")
        return self._profiles[number]

    # ---- members (section 9.2.1) ------------------------------------------------------------------------------

    def update_member(self, how: int, member: p4runtime_pb2.ActionProfileMember) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        profile = self._profile(member.action_profile_id)
        what = f"member {member.member_id} of {profile.name}"
        known = profile.members.get(member.member_id)
        _check_id(what, member.member_id, how, known is not None)
        if how == DELETE:
            assert known is not None
            if known.entries or known.groups:
                raise _precondition(f"{what} is in use by {known.entries} table entries and {known.groups} groups")
            profile.member_handles.free.append(known.handle)
            del profile.members[member.member_id]
            return
        if not member.HasField("action"):
            raise invalid(f"{what}: an action is required")
        chosen = self._action(profile, member.action)
        stored = p4runtime_pb2.ActionProfileMember()
        stored.CopyFrom(member)
        shorten_action(stored.action)
        if known is not None:
            self._loaded.dataplane.member(profile.index, known.handle, chosen)
            known.message = stored
            return
        self._refuse_mixture(profile, bool(profile.one_shots), what)
        self._make_room(profile, 1)
        with profile.member_handles.taking(1) as (handle,):
            self._loaded.dataplane.member(profile.index, handle, chosen)
        profile.members[member.member_id] = Member(stored, handle)

    def _action(self, profile: ProfileState, action: p4runtime_pb2.Action) -> Chosen:
        if not profile.tables:
            raise _precondition(f"no table uses the action profile {profile.name}")
        return Chosen(*self._loaded.schema.action(profile.tables[0], action))

    def _make_room(self, profile: ProfileState, more: int) -> None:
        held = len(profile.members) + sum(map(len, profile.one_shots.values()))
        if held + more > profile.info.size > 0:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{profile.name} is full: {held} of {profile.info.size} members"
            )

    def _refuse_mixture(self, profile: ProfileState, mixed: bool, what: str) -> None:
        if mixed:
            raise invalid(
                f"{what}: the tables of {profile.name} are programmed either with one-shot action sets or with members "
                "and groups, not both"
            )

    # ---- groups (section 9.2.2) -------------------------------------------------------------------------------

    def update_group(self, how: int, group: p4runtime_pb2.ActionProfileGroup) -> None:
        """Apply one update.

        Raises:
            RequestError: refused; nothing has changed.
        """
        profile = self._profile(group.action_profile_id)
        what = f"group {group.group_id} of {profile.name}"
        if not profile.info.with_selector:
            raise invalid(f"{what}: {profile.name} has no selector, hence no groups")
        known = profile.groups.get(group.group_id)
        _check_id(what, group.group_id, how, known is not None)
        if how == DELETE:
            assert known is not None
            if known.entries:
                raise _precondition(f"{what} is in use by {known.entries} table entries")
            self._count(profile, known.message, -1)
            self._loaded.dataplane.choice(profile.index, known.handle, [])
            profile.group_handles.free.append(known.handle)
            del profile.groups[group.group_id]
            return
        handles = self._members_of(profile, what, group)
        if known is None:
            self._check_max_size(profile, what, group.max_size)
        elif group.max_size != known.message.max_size:
            raise invalid(f"{what}: max_size is {known.message.max_size} and cannot be changed")
        stored = p4runtime_pb2.ActionProfileGroup()
        stored.CopyFrom(group)
        for member in stored.members:
            if member.watch_port:
                member.watch_port = shortest(member.watch_port)
        if known is None:
            with profile.group_handles.taking(1) as (handle,):
                self._loaded.dataplane.choice(profile.index, handle, handles)
            profile.groups[group.group_id] = Group(stored, handle)
        else:
            self._loaded.dataplane.choice(profile.index, known.handle, handles)
            self._count(profile, known.message, -1)
            known.message = stored
        self._count(profile, stored, 1)

    def _members_of(self, profile: ProfileState, what: str, group: p4runtime_pb2.ActionProfileGroup) -> list[Weighed]:
        """The members' handles and watched ports, each repeated by its weight."""
        repeated = [number for number, n in Counter(m.member_id for m in group.members).items() if n > 1]
        if repeated:
            raise invalid(f"{what}: member {repeated[0]} is given twice; a weight says how often it counts")
        for member in group.members:
            if member.member_id not in profile.members:
                raise missing(f"{what}: {profile.name} has no member {member.member_id}")
        self._check_weights(profile, what, group.members, group.max_size)
        return [
            (profile.members[m.member_id].handle, _watched(what, m)) for m in group.members for _ in range(m.weight)
        ]

    def _check_weights(self, profile: ProfileState, what: str, weighted: Iterable[Any], most: int) -> None:
        """Weights of members or of the actions of a one-shot; `most` is the group's size, 0 for no limit."""
        weights = []
        for each in weighted:
            _watched(what, each)
            if each.weight <= 0:
                raise invalid(f"{what}: a weight of {each.weight}; weights are 1 or more")
            heaviest = profile.info.sum_of_members.max_member_weight if profile.weighs_members else 0
            if each.weight > heaviest > 0:
                raise invalid(f"{what}: a weight of {each.weight}; the most is {heaviest}")
            weights.append(each.weight)
        if sum(weights) > LARGEST_GROUP:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}: weights add up to {LARGEST_GROUP} at most")
        size = len(weights) if profile.weighs_members else sum(weights)
        if size > most > 0:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}: its size would be {size}, of at most {most}"
            )

    def _check_max_size(self, profile: ProfileState, what: str, size: int) -> None:
        """Check a group's max_size. Source: section 9.2.2.1."""
        most = profile.info.max_group_size
        if most > 0 and not 0 < size <= most:
            raise invalid(f"{what}: max_size {size} is not in 1..{most}")
        if size < 0:
            raise invalid(f"{what}: max_size {size} is negative")
        if size > LARGEST_GROUP:
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}: max_size is {LARGEST_GROUP} at most")

    def _count(self, profile: ProfileState, group: p4runtime_pb2.ActionProfileGroup, change: int) -> None:
        for member in group.members:
            profile.members[member.member_id].groups += change

    # ---- references from table entries ----------------------------------------------------------------------------

    def choose(self, table: TableInfo, action: p4runtime_pb2.TableAction, instead: Chosen | None = None) -> Chosen:
        """Resolve an entry's action in an indirect table (section 9.1.2); call `release` when the entry is gone.

        Args:
            instead: the entry's current choice, which will be released.

        Raises:
            RequestError: refused; nothing is held.
        """
        name, kind = table.table.name, action.WhichOneof("type")
        profile = self._of_table[table.info.preamble.id]
        if kind == "action_profile_member_id":
            member = profile.members.get(action.action_profile_member_id)
            if member is None:
                raise missing(f"table {name}: {profile.name} has no member {action.action_profile_member_id}")
            member.entries += 1
            return Chosen(-1, member=member.handle)
        if not profile.info.with_selector:
            raise invalid(f"table {name}: its entries name a member of {profile.name}")
        if kind == "action_profile_group_id":
            group = profile.groups.get(action.action_profile_group_id)
            if group is None:
                raise missing(f"table {name}: {profile.name} has no group {action.action_profile_group_id}")
            group.entries += 1
            return Chosen(-1, group=group.handle)
        if kind == "action_profile_action_set":
            return self._one_shot(profile, name, action.action_profile_action_set.action_profile_actions, instead)
        raise invalid(f"table {name}: its entries name a member, a group or an action set of {profile.name}")

    def release(self, table: TableInfo, action: p4runtime_pb2.TableAction, chosen: Chosen) -> None:
        """Release what `choose` returned for an entry."""
        profile = self._of_table[table.info.preamble.id]
        kind = action.WhichOneof("type")
        if kind == "action_profile_member_id":
            profile.members[action.action_profile_member_id].entries -= 1
        elif kind == "action_profile_group_id":
            profile.groups[action.action_profile_group_id].entries -= 1
        elif kind == "action_profile_action_set":
            self._loaded.dataplane.choice(profile.index, chosen.group, [])
            profile.member_handles.free += profile.one_shots.pop(chosen.group)
            profile.group_handles.free.append(chosen.group)

    def _one_shot(
        self,
        profile: ProfileState,
        name: str,
        actions: Iterable[p4runtime_pb2.ActionProfileAction],
        instead: Chosen | None,
    ) -> Chosen:
        """Make a group and members for one entry (section 9.2.3)."""
        what, actions = f"table {name}, its action set", list(actions)
        self._refuse_mixture(profile, bool(profile.members or profile.groups), what)
        most = profile.info.max_group_size
        try:
            self._check_weights(profile, what, actions, most)
        except RequestError as refused:
            if refused.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise invalid(str(refused)) from refused
            raise
        parsed = [self._action(profile, each.action) for each in actions]
        self._make_room(profile, len(actions) - len(profile.one_shots.get(instead.group if instead else 0, ())))
        with profile.group_handles.taking(1) as (group,), profile.member_handles.taking(len(actions)) as handles:
            for handle, chosen in zip(handles, parsed, strict=True):
                self._loaded.dataplane.member(profile.index, handle, chosen)
            weighted = [
                (handle, _watched(what, each))
                for handle, each in zip(handles, actions, strict=True)
                for _ in range(each.weight)
            ]
            self._loaded.dataplane.choice(profile.index, group, weighted)
        profile.one_shots[group] = handles
        return Chosen(-1, group=group)

    # ---- reading ----------------------------------------------------------------------------------------------

    def read_members(self, wanted: p4runtime_pb2.ActionProfileMember) -> Iterator[p4runtime_pb2.Entity]:
        """Members; ids of 0 are wildcards."""
        for profile in self._selected(wanted.action_profile_id):
            for number, member in sorted(profile.members.items()):
                if wanted.member_id in (0, number):
                    yield p4runtime_pb2.Entity(action_profile_member=member.message)

    def read_groups(self, wanted: p4runtime_pb2.ActionProfileGroup) -> Iterator[p4runtime_pb2.Entity]:
        """Groups; ids of 0 are wildcards."""
        for profile in self._selected(wanted.action_profile_id):
            for number, group in sorted(profile.groups.items()):
                if wanted.group_id in (0, number):
                    yield p4runtime_pb2.Entity(action_profile_group=group.message)

    def _selected(self, number: int) -> list[ProfileState]:
        return [self._profile(number)] if number else list(self._profiles.values())


def _check_id(what: str, number: int, how: int, exists: bool) -> None:
    if number == 0:
        raise invalid(f"{what}: ids are 1 or more")
    if how == INSERT and exists:
        raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"{what} exists")
    if how != INSERT and not exists:
        raise missing(f"there is no {what}")


def _watched(what: str, member: Any) -> int | None:
    """The port that a member (or an action of a one-shot) watches (section 9.2.2), in the older or newer field."""
    if member.WhichOneof("watch_kind") is None:
        return None
    port = int.from_bytes(member.watch_port, "big") if member.watch_port else int(member.watch)
    if not 0 <= port <= HIGHEST_PORT:
        raise invalid(f"{what}: watches port {port}; ports are 0..{HIGHEST_PORT}")
    return port


def _precondition(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.FAILED_PRECONDITION, message)
