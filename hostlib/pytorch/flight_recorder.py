"""The collectives that this rank has begun, in the format of torch's Flight Recorder: `torchfrtrace` compares the ranks'.

One recorder serves all groups of a process. When one of its operations fails, a rank writes its file and asks all ranks of
its groups for theirs, through the groups' store: so does a rank that did not come. docs/torch.md has the variables.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp; torch/distributed/flight_recorder/components/types.py.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import pickle
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from hostlib.errors import HostlibError, RunError
from hostlib.pytorch.future_waits import when_done
from hostlib.staging.completion_threads import completing

FORMAT = "2.10"  # what torch 2.13's own recorders write
LIBRARY = "gloo"  # torchfrtrace takes the names of torch's own libraries alone
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_FILE = "~/.cache/torch/comm_lib_trace_rank_"
ASKED = "netfold/flight-record"  # the store's key
POLL_S = 1.0
FRAMES = 64  # of a call's stack

LOG = logging.getLogger(__name__)

Sizes = list[list[int]]


@dataclass(slots=True)
class Entry:
    """A collective that this rank has begun.

    Attributes:
        group: a key of FlightRecorder's groups.
        number: among those of the group, from 1.
        stack: functions and lines, the innermost first.
        done_ns: when it was complete; None before that, and if it failed.
    """

    record: int
    group: str
    number: int
    operation: str
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: list[str]
    output_dtypes: list[str]
    timeout_ms: int
    stack: list[tuple[CodeType, int]]
    thread: threading.Thread = field(default_factory=threading.current_thread)
    begun_ns: int = field(default_factory=time.time_ns)
    done_ns: int | None = None


class FlightRecorder:
    """Keeps the latest collectives of this rank.

    Args:
        size: how many.
        prefix: of the file's path; the rank follows.
    """

    def __init__(self, size: int, prefix: str) -> None:
        self._entries: deque[Entry] = deque(maxlen=size)
        self._prefix = prefix
        self._rank = 0
        self._groups: dict[str, dict[str, str]] = {}
        self._numbers: Counter[str] = Counter()
        self._records = itertools.count()
        self._lock = threading.Lock()
        self._stores: list[dist.Store] = []
        self._watching: threading.Thread | None = None
        self._written = False

    # ---- recording --------------------------------------------------------------------------------------------------

    def begin(self, group: Any, operation: str, timeout_s: float, outputs: Any, inputs: Any) -> Entry:
        """Record a collective.

        Args:
            outputs, inputs: tensors, lists of them, or lists for each rank in a list; anything else is nothing.
        """
        together = operation == "all_to_all"
        input_sizes, input_dtypes = _described([inputs] if together else inputs)
        output_sizes, output_dtypes = _described([outputs] if together else outputs)
        if operation == "reduce_scatter" and _numbers(input_sizes) != group.size() * _numbers(output_sizes):
            # Shares differ: that they do from rank to rank is no mistake.
            operation, output_sizes = "reduce_scatter_v", input_sizes
        with self._lock:
            key = self._key(group)
            self._numbers[key] += 1
            entry = Entry(
                next(self._records),
                key,
                self._numbers[key],
                operation,
                input_sizes,
                output_sizes,
                input_dtypes,
                output_dtypes,
                round(1e3 * timeout_s),
                _stack(sys._getframe(3)),  # of what called the group
            )
            self._entries.append(entry)
        return entry

    def follow(self, entry: Entry, work: dist.Work) -> None:
        """Note when a collective is complete, or has failed."""
        try:
            future = work.get_future()
        except RuntimeError:  # of CUDA tensors that are staged for Gloo: it stays "scheduled", on all ranks alike
            return

        def done() -> None:
            try:
                future.value()
            except Exception:
                self.fail()
            else:
                entry.done_ns = time.time_ns()

        when_done(future, done)

    def take_back(self, entry: Entry) -> None:
        """Forget a collective whose arguments were refused: other ranks may not have begun one."""
        with self._lock, suppress(ValueError):
            self._entries.remove(entry)
            self._numbers[entry.group] -= 1

    def _key(self, group: Any) -> str:
        """A group's name. What callbacks begin is in an order of its own (sum_streams.py), so it has another one."""
        beginner = completing()
        key: str = group.group_name if beginner is None else f"{group.group_name}:{beginner}"
        if key not in self._groups:
            ranks = dist.get_process_group_ranks(group)
            self._rank = ranks[group.rank()]
            self._groups[key] = {"name": key, "desc": group.group_desc, "ranks": str(ranks)}
        return key

    # ---- writing ----------------------------------------------------------------------------------------------------

    def write(self) -> Path:
        """Write what is known to the rank's file, in place of an earlier one. Raises OSError."""
        with self._lock:
            content = pickle.dumps(self._content())
        rank = dist.get_rank() if dist.is_initialized() else self._rank
        path = Path(f"{self._prefix}{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".partial-{rank}")  # without the prefix that torchfrtrace looks for
        partial.write_bytes(content)
        os.replace(partial, path)
        return path

    def _content(self) -> dict[str, Any]:
        ids = {key: number for number, key in enumerate(self._groups)}
        status = {
            str(number): {
                "last_enqueued_collective": self._numbers[key],
                "last_started_collective": -1,
                "last_completed_collective": max(
                    (entry.number for entry in self._entries if entry.group == key and entry.done_ns), default=-1
                ),
            }
            for key, number in ids.items()
        }
        return {
            "version": FORMAT,
            "comm_lib_version": "netfold",
            "pg_config": dict(self._groups),
            "pg_status": status,
            "entries": [self._as_torchs(entry, ids[entry.group]) for entry in self._entries],
        }

    def _as_torchs(self, entry: Entry, group: int) -> dict[str, Any]:
        return {
            "record_id": entry.record,
            "pg_id": group,
            "process_group": (entry.group, self._groups[entry.group]["desc"]),
            "collective_seq_id": entry.number,
            "p2p_seq_id": 0,
            "op_id": entry.number,
            "profiling_name": f"{LIBRARY}:{entry.operation}",
            "time_created_ns": entry.begun_ns,
            "input_sizes": entry.input_sizes,
            "input_dtypes": entry.input_dtypes,
            "output_sizes": entry.output_sizes,
            "output_dtypes": entry.output_dtypes,
            "state": "scheduled" if entry.done_ns is None else "completed",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": entry.done_ns,
            "retired": entry.done_ns is not None,
            "timeout_ms": entry.timeout_ms,
            "is_p2p": False,
            "thread_id": str(entry.thread.ident),
            "thread_name": entry.thread.name,
            "frames": [
                {"name": code.co_name, "filename": code.co_filename, "line": line} for code, line in entry.stack
            ],
        }

    # ---- failures ---------------------------------------------------------------------------------------------------

    def watch(self, store: dist.Store) -> None:
        """A group begins: its ranks may ask for this rank's file.

        Args:
            store: of the group alone, with a connection of its own.
        """
        with self._lock:
            self._written = False
            self._stores.append(store)
            if self._watching is None:
                self._watching = threading.Thread(target=self._watch, name="netfold-flight-recorder", daemon=True)
                self._watching.start()

    def unwatch(self, store: dist.Store) -> None:
        """The group ends."""
        with self._lock, suppress(ValueError):
            self._stores.remove(store)

    def fail(self) -> None:
        """Something has failed: ask all other ranks for their files and write this rank's.

        In this order, for a script may end once its file is there, and their store with it. Only the first time, for later failures are its consequences, until another group begins.
        """
        with self._lock:
            if self._written:
                return
            self._written = True
            stores = list(self._stores)
        for store in stores:
            with suppress(RuntimeError):  # Its server may have been a rank that is gone.
                store.set(ASKED, "")
        try:
            LOG.warning("netfold: flight record written to %s", self.write())
        except OSError as error:
            LOG.warning("netfold: no flight record: %s", error)

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            with self._lock:
                stores = list(self._stores)
                if not stores:
                    self._watching = None
                    return
            for store in stores:
                try:
                    asked = store.check([ASKED])
                except RuntimeError:
                    # Its server is gone before this group: a rank that failed, perhaps just after it asked.
                    asked = True
                with self._lock:
                    asked = asked and store in self._stores  # not a group that has ended meanwhile
                if asked:
                    self.unwatch(store)
                    self.fail()


@cache
def flight_recorder() -> FlightRecorder | None:
    """This process's recorder; None if the environment asks for none, as by default.

    Raises:
        HostlibError: the environment has no number of entries.
    """
    name = next((each for each in SIZE_VARIABLES if each in os.environ), SIZE_VARIABLES[0])
    text = os.environ.get(name, "0")
    try:
        size = int(text)
    except ValueError:
        raise HostlibError(f"{name} must be a whole number, not {text!r}") from None
    if size <= 0:
        return None
    prefix = next((os.environ[each] for each in FILE_VARIABLES if each in os.environ), DEFAULT_FILE)
    return FlightRecorder(size, os.path.expanduser(prefix))


def write_flight_record() -> Path:
    """See netfold.write_flight_record."""
    recorder = flight_recorder()
    if recorder is None:
        raise RunError(f"nothing is recorded: set {SIZE_VARIABLES[0]} to how many collectives each rank is to keep")
    return recorder.write()


def _described(value: Any) -> tuple[Sizes, list[str]]:
    """Sizes and dtypes; of one tensor where there is a list for each rank, as torch's recorders do."""
    tensors = [value] if isinstance(value, Tensor) else value if isinstance(value, list | tuple) else []
    sizes: Sizes = []
    dtypes: list[str] = []
    for each in tensors:
        of_ranks = [each] if isinstance(each, Tensor) else each
        if not of_ranks:
            continue
        shapes = [list(one.shape) for one in of_ranks]
        alike = all(shape == shapes[0] for shape in shapes)
        whole = [len(shapes), *shapes[0]] if alike else [sum(map(math.prod, shapes))]
        sizes.append(shapes[0] if isinstance(each, Tensor) else whole)
        dtypes.append(str(of_ranks[0].dtype).removeprefix("torch."))
    return sizes, dtypes


def _numbers(sizes: Sizes) -> int:
    return sum(map(math.prod, sizes))


def _stack(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    stack: list[tuple[CodeType, int]] = []
    while frame is not None and len(stack) < FRAMES:
        stack.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return stack
