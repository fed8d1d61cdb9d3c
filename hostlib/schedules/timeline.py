"""A schedule as a timeline: who sends which piece to whom in which step, if every message takes one step.

A node sends one message and receives one message per step; a multicast counts as one sent message.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from hostlib.schedules.schedule import Aggregate, Multicast, Operation, Receive, Schedule, Send, is_host
from hostlib.system.plot_file import new_figure, require_drawable, save


@dataclass(frozen=True, slots=True)
class Message:
    """A message that is sent during a step (from 1).

    Attributes:
        reduce: the receiver adds it to its piece.
    """

    step: int
    sender: str
    receiver: str
    piece: int
    reduce: bool


def timeline(schedule: Schedule) -> list[Message]:
    """Messages, by step, of a schedule that `hostlib.schedules.checker.check` has accepted."""
    todo = {node: deque(operations) for node, operations in schedule.nodes.items()}
    clock: dict[str, int] = defaultdict(int)  # the step until which a node's list is done
    sent: dict[str, int] = defaultdict(int)  # the last step in which a node sends
    taken: dict[str, int] = defaultdict(int)
    wires: dict[tuple[str, str, int], deque[int]] = defaultdict(deque)
    messages: list[Message] = []

    def take(sender: str, node: str, piece: int, reduce: bool) -> int:
        step = wires[sender, node, piece].popleft()
        if is_host(node):
            step = taken[node] = max(step, taken[node] + 1)
        messages.append(Message(step, sender, node, piece, reduce))
        return step

    def do(node: str, operation: Operation) -> bool:
        match operation:
            case Send(_, piece) | Multicast(_, piece):
                peers = operation.peers if isinstance(operation, Multicast) else (operation.peer,)
                sent[node] = max(clock[node], sent[node]) + 1
                for peer in peers:
                    wires[node, peer, piece].append(sent[node])
            case Receive(_, piece) | Aggregate(_, piece):
                peers = operation.peers if isinstance(operation, Aggregate) else (operation.peer,)
                if not all(wires[peer, node, piece] for peer in peers):
                    return False
                reduce = isinstance(operation, Aggregate) or operation.reduce
                clock[node] = max(clock[node], *(take(peer, node, piece, reduce) for peer in peers))
        return True

    moved = True
    while moved:
        moved = False
        for node, operations in todo.items():
            while operations and do(node, operations[0]):
                operations.popleft()
                moved = True
    return sorted(messages, key=lambda message: message.step)


def table(schedule: Schedule) -> Table:
    """Table with a row for each step and a column for each node."""
    messages = timeline(schedule)
    drawn = Table("step", *schedule.nodes, title_justify="left", show_lines=True)
    for step in range(1, 1 + max((message.step for message in messages), default=0)):
        cells: dict[str, list[str]] = defaultdict(list)
        for message in messages:
            if message.step == step:
                cells[message.sender].append(f"{message.piece} → {message.receiver}")
                sign = "+" if message.reduce else "="
                cells[message.receiver].append(f"{sign} {message.piece} ← {message.sender}")
        drawn.add_row(str(step), *("\n".join(cells[node]) for node in schedule.nodes))
    return drawn


def picture(schedule: Schedule, path: Path) -> None:
    """Draw the timeline to a file: a line for each node, an arrow for each message, a colour for each piece.

    Raises:
        HostlibError: the file's kind cannot be drawn, or matplotlib is missing.
    """
    require_drawable(path)
    from matplotlib import colormaps

    messages = timeline(schedule)
    steps = max((message.step for message in messages), default=1)
    lines = {node: -place for place, node in enumerate(schedule.nodes)}
    figure = new_figure(min(2 + 0.7 * steps, 60), 1 + 0.5 * len(lines))
    axes = figure.add_subplot(
        xlabel="step", title=f"{schedule.collective} by {schedule.mechanism}, {schedule.world_size} workers"
    )
    axes.set_xlim(0, steps)
    axes.set_ylim(-len(lines) + 0.5, 0.5)
    axes.set_yticks(list(lines.values()), list(lines))
    axes.hlines(list(lines.values()), 0, steps, color="0.85", linewidth=0.8)
    for message in messages:
        colour = colormaps["viridis"](message.piece / max(schedule.pieces - 1, 1))
        style = "-|>" if message.reduce else "->"
        arrow = {"arrowstyle": style, "color": colour, "shrinkA": 0, "shrinkB": 0}
        ends = (message.step, lines[message.receiver]), (message.step - 1, lines[message.sender])
        axes.annotate("", xy=ends[0], xytext=ends[1], arrowprops=arrow)
    save(figure, path)
