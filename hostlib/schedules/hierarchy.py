"""Convert a schedule for one switch to a tree of switches: sums and multicasts at every level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from hostlib.schedules.schedule import SWITCH, Aggregate, Multicast, Operation, Receive, Schedule, Send, is_host, worker
from hostlib.topology.switch_tree import SwitchTree


def spread(schedule: Schedule, tree: SwitchTree, switch_of: Mapping[str, str]) -> Schedule:
    """Replace the one switch's operations by those of a tree of switches, as the fabric does them (docs/topology.md).

    The sum is taken where all workers meet: at the lowest switch that has all of them below it or, with servers, at the
    root, where the servers are. What it sends to one worker alone goes there from that switch. What the switch only
    forwards goes through the root unsummed; schedules that only do that are returned unchanged.

    Args:
        switch_of: the switch of each worker.
    """
    operations = schedule.nodes.get(SWITCH, ())
    passed_on = any(isinstance(each, Receive) and each.peer.startswith("worker") for each in operations)
    if not operations or passed_on or len(tree.above) == 1:
        return schedule
    workers = [worker(rank) for rank in range(schedule.world_size)]
    below = _members(tree, {node: switch_of[node] for node in workers})
    top = tree.root
    while not schedule.servers and len(below[top]) == 1 and not is_host(below[top][0]):
        top = below[top][0]
    levels = [name for level in tree.levels() for name in level if name in below and top in tree.path(name)]
    at: dict[str, list[Operation]] = {name: [] for name in levels}
    for operation in operations:
        match operation:
            case Aggregate(peers, piece):
                giving = {*peers, *chain.from_iterable(tree.path(switch_of[peer]) for peer in peers)}
                for name in filter(giving.__contains__, reversed(levels)):
                    at[name].append(Aggregate(tuple(filter(giving.__contains__, below[name])), piece))
                    if name != top:
                        at[name].append(Send(str(tree.above[name]), piece))
            case Multicast(_, piece):
                for name in levels:
                    if name != top:
                        at[name].append(Receive(str(tree.above[name]), piece, False))
                    at[name].append(Multicast(below[name], piece))
            case _:
                at[top].append(operation)
    alone = {(operation.peer, operation.piece) for operation in operations if isinstance(operation, Send)}
    nodes: dict[str, tuple[Operation, ...]] = {}
    for node in schedule.nodes:
        if node != SWITCH:
            switch = switch_of[node] if node.startswith("worker") else top
            nodes[node] = tuple(
                _at_switch(each, top if isinstance(each, Receive) and (node, each.piece) in alone else switch)
                for each in schedule.nodes[node]
            )
    return replace(schedule, nodes={**nodes, **{name: tuple(at[name]) for name in reversed(levels)}})


def _members(tree: SwitchTree, switch_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Switch with workers below it -> the workers on it, and the switches below it that have workers."""
    members: dict[str, list[str]] = {name: [] for name in tree.above}
    for node, switch in switch_of.items():
        members[switch].append(node)
    for name in reversed(tree.above):  # children come before their parents
        parent = tree.above[name]
        if members[name] and parent is not None:
            members[parent].append(name)
    return {name: tuple(sorted(found, key=_place)) for name, found in members.items() if found}


def _place(node: str) -> tuple[str, int]:
    """Sort key that orders names by their numbers."""
    plain = node.rstrip("0123456789")
    return plain, int(node[len(plain) :] or 0)


def _at_switch(operation: Operation, switch: str) -> Operation:
    if isinstance(operation, Send | Receive) and operation.peer == SWITCH:
        return replace(operation, peer=switch)
    return operation
