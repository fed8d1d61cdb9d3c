"""`hostlib bench`: performance of all-reduces and other collectives, measured and printed as in nccl-tests. Torch-free except for the launch."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hostlib.bench.bench_cells import (
    ALL_REDUCE,
    BOTH,
    MEASURED,
    SUMMED,
    BenchCell,
    bus_factor,
    can_measure,
    cells_of,
)
from hostlib.bench.local_fabric import Faults, local_fabric
from hostlib.bench.tcp_stream import tcp_stream
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.fabric.job_client import require_controller
from hostlib.fabric.static_window import require_window, static_window
from hostlib.launch.hosts import (
    LARGEST_WORLD,
    Hosts,
    LocalHosts,
    NamespaceHosts,
    namespace_hosts,
    parse_hosts,
    to_bridge,
    to_switch,
)
from hostlib.mechanisms.mechanism import find, registered
from hostlib.protocol.framing import V1MODEL_ELEMENTS, mtu_for
from hostlib.protocol.header import ELEMENTS, frame_bytes
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.system.extras import CONTROLLER, require_installed
from hostlib.system.machine import BUSY
from hostlib.system.network_links import QUEUE_FRAMES
from hostlib.text import units

ITEM_BYTES = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST_BYTES = 4 << 30
DEFAULT_SIZES = "64K,1M,16M"
DEFAULT_WORLD_SIZE = 4
LOCAL = "local"
TRANSPORT = "gloo"  # transports of messages between the ranks


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The options of each rank; see BenchOptions.

    Attributes:
        cells: the fields of each BenchCell.
        stream: the file of a TCP stream beside them (tcp_stream.py); None without one.
        window, beside_job: as BenchOptions has them.
    """

    cells: tuple[tuple[str, str], ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    iterations: int | None
    warm_up: int
    repeats: int
    seed: int
    controller: str
    deadline_s: float
    address: str = "127.0.0.1"
    device: str = "cpu"
    stream: str | None = None
    window: int | None = None
    beside_job: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankOptions:
        options: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
        values["cells"] = tuple(map(tuple, values["cells"]))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure, and where.

    Attributes:
        sizes: of a tensor, bytes; the whole one where each rank has, or gets, a shard.
        iterations: collectives that are timed together; None for as many as take about a quarter of a second.
        repeats: number of timed measurements.
        hosts: `local` or `netns:N`.
        ranks_per_host: of netns.
        rate: of each link of netns, as `100mbit`; None for unlimited.
        queue: frames that wait at each end of a link with a rate; None for hostlib.system.network_links's number.
        elements: in a packet, of the fabric that is started; links of netns have the MTU that it takes.
        window: packets that each lane of a rank has outstanding; None for NETFOLD_WINDOW or, without it, a window
            that follows losses.
        beside_tcp: the first host sends a TCP stream to one more host, over the link that its ranks use.
        beside_tcp_in: the one more sends it to the first host: results wait in the same queue of the switch.
        beside_job: the same ranks run a second job of the same mechanism, which sums all the time.
        mark: frames in a queue of the switch from which and to which it marks some (ECN), FROM:TO; None for never.
        controller: of a running fabric; None to start one.
        collectives: names of MEASURED. A mechanism is measured with those of them that it can do.
        device: where tensors are: `cpu`; `cuda:1`; `cuda`, with ranks dealt to the GPUs in turn.

    Raises:
        HostlibError: an unknown name, or options that contradict each other.
    """

    mechanisms: tuple[str, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    world_size: int | None = None
    iterations: int | None = None
    warm_up: int = 1
    repeats: int = 3
    hosts: str = LOCAL
    rate: str | None = None
    faults: Faults = field(default_factory=Faults)
    controller: str | None = None
    deadline_s: float = 30.0
    collectives: tuple[str, ...] = (ALL_REDUCE,)
    device: str = "cpu"
    ranks_per_host: int = 1
    queue: int | None = None
    beside_tcp: bool = False
    beside_tcp_in: bool = False
    beside_job: bool = False
    mark: str | None = None
    elements: int = ELEMENTS
    window: int | None = None

    def __post_init__(self) -> None:
        if not self.mechanisms:
            raise UnknownNameError("mechanism", "", registered())
        for name in self.mechanisms:
            find(name).require_ranks(TRANSPORT)
            if find(name).one_host and self.hosts != LOCAL:
                raise HostlibError(
                    f"{name} is for ranks of one host, and with --on netns each has its own; "
                    f"legal are {', '.join(measurable(self.hosts))}"
                )
        cells_of(self.mechanisms, self.collectives)
        unknown = next((name for name in self.dtypes if name not in ITEM_BYTES), None)
        if unknown is not None or not self.dtypes:
            raise UnknownNameError("dtype", unknown or "", ITEM_BYTES)
        numbers = {"iterations": self.iterations, "repeats": self.repeats, "deadline": self.deadline_s}
        for name, number in numbers.items():
            if number is not None and not 0 < number < math.inf:
                finite = " and finite" if number == math.inf else ""
                raise HostlibError(f"--{name} must be above 0{finite}, not {number}")
        if self.warm_up < 0:
            raise HostlibError(f"--warm-up must be at least 0, not {self.warm_up}")
        largest_item = max(ITEM_BYTES[dtype] for dtype in self.dtypes)
        for size in self.sizes:
            if not largest_item <= size <= LARGEST_BYTES:
                raise HostlibError(
                    f"a size of {size} bytes is not in {largest_item}..{LARGEST_BYTES}, one element to 4G"
                )
        self._check_window()
        self._check_place()

    def _check_window(self) -> None:
        static_window(SLOTS_PER_POOL)
        if self.window is None:
            return
        require_window("--window", self.window, SLOTS_PER_POOL)
        if not any(cell.collective in SUMMED and not cell.sends_messages for cell in self.cells):
            raise HostlibError(
                "--window is of all-reduces and reduce-scatters that the switch sums: name one of those mechanisms, as "
                "inagg+mcast"
            )

    def _check_place(self) -> None:
        past = [collective for collective in self.collectives if collective != ALL_REDUCE]
        if self.device != "cpu" and past:
            raise HostlibError(
                f"--device {self.device}: of CUDA tensors only {ALL_REDUCE} is measured, not {', '.join(past)}"
            )
        if self.world_size is not None and not 1 <= self.world_size <= LARGEST_WORLD:
            raise HostlibError(f"--workers must be in 1..{LARGEST_WORLD}, not {self.world_size}")
        count = parse_hosts(self.hosts)
        self._check_ranks_per_host(count)
        if count is not None and self.world_size not in (None, self.ranks):
            each = "a rank" if self.ranks_per_host == 1 else f"{self.ranks_per_host} ranks"
            raise HostlibError(f"--workers {self.world_size} does not match {self.hosts}, {each} on each")
        if self.rate is not None:
            units.bandwidth(self.rate)
            if count is None:
                raise HostlibError("--bandwidth sets the rate of links between network namespaces: it needs --on netns")
        if self.queue is not None and self.queue < 1:
            raise HostlibError(f"--queue must be at least 1, not {self.queue}")
        if self.elements not in V1MODEL_ELEMENTS:
            legal = ", ".join(map(str, V1MODEL_ELEMENTS))
            raise HostlibError(f"--elements must be one of {legal}, not {self.elements}")
        if self.controller is not None and self.elements != ELEMENTS:
            raise HostlibError("--elements: the fabric of --controller runs already; give it to `controller start`")
        of_links = {
            "--beside-tcp": self.beside_tcp,
            "--beside-tcp-in": self.beside_tcp_in,
            "--mark": self.mark is not None,
            "--queue": self.queue is not None,
        }
        flag = next((flag for flag, given in of_links.items() if given), None)
        if self.rate is None and flag is not None:
            raise HostlibError(f"{flag} is for links with a rate: it needs --on netns and --bandwidth")
        if self.beside_tcp and self.beside_tcp_in:
            raise HostlibError("--beside-tcp and --beside-tcp-in: one stream is measured; leave out one of them")
        self._check_second_job()
        if self.mark is not None:
            units.frame_range(self.mark, "--mark")
        if self.controller is not None and count is not None:
            raise HostlibError("network namespaces have a fabric of their own: --controller goes with --on loopback")
        flags = [*self.faults.flags, *(["--mark"] if self.mark is not None else [])]
        if not flags:
            return
        options = ", ".join(flags)
        if self.controller is not None:
            raise HostlibError(f"{options}: the fabric of --controller runs already; give them to `controller start`")
        past = [str(cell) for cell in self.cells if not cell.needs_fabric]
        if past:
            raise HostlibError(
                f"{options}: only the embedded switch loses, repeats, delays, damages and marks packets, and "
                f"{', '.join(past)} would not use it: leave out one or the other"
            )

    def _check_second_job(self) -> None:
        unlike = [str(cell) for cell in self.cells if cell.collective != ALL_REDUCE or cell.servers]
        if self.beside_job and unlike:
            raise HostlibError(
                f"--beside-job: the second job does all-reduces without servers, unlike {', '.join(unlike)}: leave out one or "
                "the other"
            )

    def _check_ranks_per_host(self, count: int | None) -> None:
        if self.ranks_per_host < 1:
            raise HostlibError(f"--ranks-per-host must be at least 1, not {self.ranks_per_host}")
        if self.ranks_per_host == 1:
            return
        if count is None:
            raise HostlibError("--ranks-per-host puts several ranks into each network namespace: it needs --on netns")
        for cell in self.cells:
            mechanism = find(cell.mechanism)
            if cell.servers or (cell.needs_fabric and not mechanism.same_host):
                raise HostlibError(
                    f"--ranks-per-host: {cell} needs a rank's own port of the switch, or servers; legal are mechanisms "
                    "of ranks alone, and those through the switch with :same_host=shm"
                )

    @property
    def cells(self) -> tuple[BenchCell, ...]:
        """The mechanisms, each with what it can do of the collectives."""
        return cells_of(self.mechanisms, self.collectives)

    @property
    def streams(self) -> bool:
        """Whether there is a TCP stream, and one more host for its other end."""
        return self.beside_tcp or self.beside_tcp_in

    @property
    def ranks(self) -> int:
        hosts = parse_hosts(self.hosts)
        return self.world_size or DEFAULT_WORLD_SIZE if hosts is None else hosts * self.ranks_per_host

    def for_rank(
        self, cells: tuple[BenchCell, ...], controller: str, address: str, stream: str | None = None
    ) -> RankOptions:
        return RankOptions(
            tuple((cell.mechanism, cell.collective) for cell in cells),
            self.sizes,
            self.dtypes,
            self.iterations,
            self.warm_up,
            self.repeats,
            self.faults.seed,
            controller,
            self.deadline_s,
            address,
            self.device,
            stream,
            self.window,
            self.beside_job,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, as nccl-tests defines it.

    Attributes:
        collective: what was done; one of MEASURED.
        size_bytes: of a whole tensor, as asked for, or rounded to whole shards.
        time_us: of one of them on the slowest rank, the median over the repeats; `fastest_us` and `slowest_us` are
            the extremes of the repeats.
        algbw_gbytes_per_s: size over time, 10^9 bytes per second.
        busbw_gbytes_per_s: algbw * bus_factor: what each link carries in a ring.
        wrong: elements, on whichever rank has the most, that differ from the exact sum by more than docs/protocol.md
            allows; all of a rank whose bits differ from the others'.
        retransmits: of all ranks, during the timed part: packets of the slot protocol, or TCP segments.
        by_hosts: how many the hosts did, since the switch had failed: of those this says nothing about the switch.
        sent_bytes, received_bytes: of frames, for one of them, on the link of the rank that sends, or receives, most;
            None where ranks have no link of their own. A TCP stream's are among them.
        tcp_gbytes_per_s: what a TCP stream carried meanwhile, 10^9 bytes per second; None without one.
        job_gbytes_per_s: of tensors that a second job summed meanwhile, 10^9 bytes per second; None without one. Its bytes
            are among those of the links.
        marked: results that said that a queue had grown (ECN), of all ranks, during the timed part.
        queue_frames: the most frames that waited for one link of the switch, whichever of its mechanisms was measured;
            None where links have no rate, or there is no switch.
        cores_busy: share of the time of all cores of this machine that anything used during the timed part; None if that
            was too short to tell.
    """

    mechanism: str
    collective: str
    size_bytes: int
    count: int
    dtype: str
    time_us: float
    fastest_us: float
    slowest_us: float
    algbw_gbytes_per_s: float
    busbw_gbytes_per_s: float
    wrong: int
    retransmits: int
    by_hosts: int
    sent_bytes: int | None
    received_bytes: int | None
    tcp_gbytes_per_s: float | None = None
    job_gbytes_per_s: float | None = None
    marked: int = 0
    queue_frames: int | None = None
    cores_busy: float | None = None

    def as_json(self) -> dict[str, Any]:
        """As `hostlib bench --json` prints it; the rates also under the names that they had one version ago."""
        return {**asdict(self), "algbw_gbps": self.algbw_gbytes_per_s, "busbw_gbps": self.busbw_gbytes_per_s}


Event = dict[str, Any]


def run_bench(options: BenchOptions, report: Callable[[Event], None]) -> list[Row]:
    """Measure every mechanism with every type and size, in that order.

    Args:
        report: called before and after each measurement; `event` is "measuring", then "row", and the other keys are
            `mechanism`, `collective`, `size_bytes` and `dtype`.

    Raises:
        HostlibError: namespaces or fabric could not be made, or a rank failed; nothing is left behind.
        ModuleNotFoundError: torch, or what a fabric takes, is not installed; nothing was started.
    """
    from hostlib.launch.launcher import run_ranks

    if options.controller is not None:
        require_controller(options.controller)
    elif any(cell.needs_fabric for cell in options.cells):
        require_installed("torch", *CONTROLLER)
    rows: list[Row] = []
    with ExitStack() as stack:
        count = parse_hosts(options.hosts)
        servers = max(cell.servers for cell in options.cells)
        spaces = (
            None
            if count is None
            else stack.enter_context(
                namespace_hosts(
                    count + servers + options.streams,
                    options.rate,
                    options.ranks_per_host,
                    options.queue or QUEUE_FRAMES,
                    mtu_for(options.elements),
                    options.mark,
                )
            )
        )
        for cells in _by_place(options.cells):
            through = cells[0].needs_fabric
            counters: list[dict[str, Any]] = []
            with ExitStack() as place:
                hosts: Hosts = LocalHosts()
                if spaces is not None and through:
                    hosts = to_switch(spaces, cells[0].sends_messages)
                elif spaces is not None:
                    hosts = place.enter_context(to_bridge(spaces))
                controller = options.controller or ""
                if through and not controller:
                    controller = place.enter_context(
                        local_fabric(hosts, options.faults, options.elements, counters.append)
                    )
                serve = max(cell.servers for cell in cells)
                addresses = [hosts.address(rank) for rank in range(options.ranks + serve)]
                stream = None
                if spaces is not None and options.streams:
                    stream = place.enter_context(_stream(spaces, options.beside_tcp_in))
                rank_options = [options.for_rank(cells, controller, address, stream).to_json() for address in addresses]
                done = run_ranks(
                    "hostlib.bench.allreduce_rank", rank_options.__getitem__, options.ranks, hosts, report, serve
                )
            deepest = _deepest(counters[0]) if counters and options.rate is not None else None
            rows += [Row(**row, queue_frames=deepest) for row in done["rows"]]
    return sorted(rows, key=lambda row: options.cells.index(BenchCell(row.mechanism, row.collective)))


@contextmanager
def _stream(hosts: NamespaceHosts, inwards: bool) -> Iterator[str]:
    """A TCP stream from the first host to the last, or from the last to the first."""
    ends = (0, len(hosts.spaces) - 1)
    source, sink = reversed(ends) if inwards else ends
    with tempfile.TemporaryDirectory(prefix="netfold-stream-") as folder:
        spaces, address = (hosts.spaces[source], hosts.spaces[sink]), hosts.address(sink * hosts.ranks_per_host)
        with tcp_stream(Path(folder), spaces, address) as count:
            yield str(count)


def _deepest(counters: dict[str, Any]) -> int:
    """The most frames that have waited for a port of the switch."""
    return max(int(port["queue_depth_max"]) for port in counters["ports"].values())


def _by_place(cells: tuple[BenchCell, ...]) -> list[tuple[BenchCell, ...]]:
    """Group cells by the links that they need: the fabric; the fabric with ranks' messages; a bridge."""

    def kind(cell: BenchCell) -> tuple[bool, bool]:
        return cell.needs_fabric, cell.sends_messages

    kinds = dict.fromkeys(map(kind, cells))
    return [tuple(cell for cell in cells if kind(cell) == each) for each in kinds]


# ---- sizes ------------------------------------------------------------------------------------------------------


def parse_sizes(sizes: str | None, first: str | None, last: str | None, factor: int) -> tuple[int, ...]:
    """Parse a list `64K,1M`, or a range from `first` to `last`, each `factor` times the one before.

    Raises:
        HostlibError: both or half of them are given, or they are not sizes (hostlib.text.units.size; M is 2^20, as in
            nccl-tests).
    """
    if first is None and last is None:
        return tuple(dict.fromkeys(units.size(text) for text in (DEFAULT_SIZES if sizes is None else sizes).split(",")))
    if sizes is not None or first is None or last is None:
        raise HostlibError("give sizes either as a list (--size 64K,1M) or as a range (--from 8 --to 16M)")
    if factor < 2:
        raise HostlibError(f"--factor must be at least 2, not {factor}")
    size, end = units.size(first), units.size(last)
    if not 0 < size <= end:
        raise HostlibError(f"--from {first} --to {last} is not a range of sizes")
    found = []
    while size <= end:
        found.append(size)
        size *= factor
    return tuple(found)


def describe_size(size: int) -> str:
    unit = next((u for u in "GMK" if size % UNITS[u] == 0), "")
    return f"{size // UNITS[unit]}{unit}"


# ---- output ----------------------------------------------------------------------------------------------------------


class BenchProgress:
    """Progress display: a bar on a terminal, else a line per measurement."""

    def __init__(self, console: Console, measurements: int) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("starting", total=measurements)

    def __enter__(self) -> Callable[[Event], None]:
        self._progress.start()
        return self._report

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _report(self, event: Event) -> None:
        if event["event"] == "measuring":
            cell = BenchCell(event["mechanism"], event["collective"])
            what = f"{cell}, {describe_size(event['size_bytes'])} {event['dtype']}"
            self._progress.update(self._task, description=what)
            if not self._console.is_terminal:
                self._console.print(f"measuring: {what}", highlight=False)
        else:
            self._progress.advance(self._task)


def print_rows(options: BenchOptions, rows: list[Row], console: Console) -> None:
    """Print the table, and how to read it."""
    place = options.hosts if options.rate is None else f"{options.hosts}, {options.rate}"
    if options.elements != ELEMENTS:
        place = f"{place}, packets of {options.elements} elements"
    if options.window is not None:
        place = f"{place}, a window of {options.window}"
    if options.device != "cpu":
        place = f"{place}, tensors on {options.device}"
    table = Table(title=f"{options.ranks} ranks, {place}", title_justify="left", box=None)
    for name in (
        "mechanism",
        "collective",
        "size",
        "count",
        "type",
        "time",
        "spread",
        "algbw",
        "busbw",
        "#wrong",
        "again",
        "cpu",
        *(("marked",) if options.mark is not None else ()),
        *(("queue",) if options.rate is not None else ()),
        "out",
        "in",
        *(("tcp",) if options.streams else ()),
        *(("job",) if options.beside_job else ()),
    ):
        table.add_column(name, justify="left" if name in ("mechanism", "collective", "type") else "right", no_wrap=True)
    table.add_row(
        "",
        "",
        "(B)",
        "(elements)",
        "",
        "(us)",
        "",
        "(GB/s)",
        "(GB/s)",
        "",
        "",
        "",
        *(("",) if options.mark is not None else ()),
        *(("(frames)",) if options.rate is not None else ()),
        "(B)",
        "(B)",
        *(("(GB/s)",) if options.streams else ()),
        *(("(GB/s)",) if options.beside_job else ()),
    )
    for row in rows:
        table.add_row(
            row.mechanism,
            row.collective,
            str(row.size_bytes),
            str(row.count),
            row.dtype,
            f"{row.time_us:.1f}",
            f"{(row.slowest_us - row.fastest_us) / row.time_us:.0%}",
            f"{row.algbw_gbytes_per_s:.4f}",
            f"{row.busbw_gbytes_per_s:.4f}",
            str(row.wrong) if row.wrong == 0 else f"[red]{row.wrong}[/red]",
            str(row.retransmits),
            "" if row.cores_busy is None else f"{row.cores_busy:.0%}",
            *((str(row.marked),) if options.mark is not None else ()),
            *(("" if row.queue_frames is None else str(row.queue_frames),) if options.rate is not None else ()),
            *("" if each is None else str(each) for each in (row.sent_bytes, row.received_bytes)),
            *(f"{each:.4f}" for each in (row.tcp_gbytes_per_s, row.job_gbytes_per_s) if each is not None),
        )
    console.print(table)
    for line in (*remarks(options, rows), *foot(options)):
        console.print(line, highlight=False, soft_wrap=True)


def remarks(options: BenchOptions, rows: list[Row]) -> list[str]:
    """Of which rows the time is not the network's, and why; with Rich's markup."""
    lines = []
    for row in rows:
        what = f"{BenchCell(row.mechanism, row.collective)}, {describe_size(row.size_bytes)} {row.dtype}"
        if row.by_hosts:
            lines.append(
                f"[red]{what}: the switch failed, and the hosts did {row.by_hosts} without it: these times are not the "
                "fabric's[/red]"
            )
        if options.rate is not None and row.cores_busy is not None and row.cores_busy > BUSY:
            lines.append(
                f"[yellow]{what}: this machine's cores were {row.cores_busy:.0%} busy: the time may be theirs, not that of "
                f"links of {options.rate}; fewer --workers or a lower --bandwidth need less of them[/yellow]"
            )
    return lines


def foot(options: BenchOptions) -> list[str]:
    """Footnotes that explain the table."""
    n = options.ranks
    lines = [
        "time: the slowest rank's, median of the repeats; spread: between them; again: packets sent again by all ranks.",
        "cpu: the share of this machine's cores that was in use.",
        "out, in: bytes on the busiest link for one of them, with headers; only where each rank has a link of its own.",
        f"busbw is what a link carries in a ring: {_factors(options.collectives, n)}.",
    ]
    if BOTH in options.collectives:
        lines.append(f"{BOTH}: a reduce-scatter and an all-gather at once, each of a whole tensor of that size.")
    if options.mark is not None:
        lines.append("marked: results that said that a queue had grown (ECN), at all ranks.")
    if options.rate is not None and any(cell.needs_fabric for cell in options.cells):
        lines.append("queue: the most frames that waited for one link of the switch, in the whole run.")
    if options.streams:
        way = "from another host to the first" if options.beside_tcp_in else "from the first host to another"
        lines.append(f"tcp: what a TCP stream (CUBIC) {way} carried meanwhile over the same link.")
    if options.beside_job:
        lines.append(
            "job: of tensors that a second job of the same mechanism and ranks summed meanwhile; compare algbw."
        )
    through = [cell for cell in options.cells if cell.needs_fabric]
    once = [cell.mechanism for cell in through if not cell.sends_messages]
    if once:
        lines.append(f"Through the fabric a worker's link carries each byte once: for {', '.join(once)} look at algbw.")
    if through and options.rate is not None:
        payload, frame = frame_bytes(options.elements)
        lines.append(
            f"A link of {options.rate} carries at most {payload_limit_gbps(options.rate, options.elements):.5f} GB/s of values: "
            f"{payload} of a frame's {frame} bytes."
        )
    return lines


def _factors(collectives: tuple[str, ...], ranks: int) -> str:
    """Of each collective: its busbw over its algbw."""
    return ", ".join(f"{bus_factor(each, ranks):.3f} algbw of {each}" for each in collectives)


def payload_limit_gbps(rate: str, elements: int = ELEMENTS) -> float:
    """10^9 bytes of values per second that a link of a rate carries in each direction."""
    payload, frame = frame_bytes(elements)
    return units.bandwidth(rate, "rate") / 8e9 * payload / frame


def measurable(hosts: str = LOCAL, collectives: tuple[str, ...] = (ALL_REDUCE,)) -> tuple[str, ...]:
    """The mechanisms that ranks on these `hosts` can run, and that can do one of the collectives."""
    return tuple(
        name
        for name, m in registered().items()
        if m.runs_with(TRANSPORT)
        and (hosts == LOCAL or not m.one_host)
        and any(can_measure(m, each) for each in collectives if each in MEASURED)
    )


def measurements(options: BenchOptions) -> int:
    """Number of rows of the table."""
    return len(options.cells) * len(options.dtypes) * len(options.sizes)
