"""Processes' CPU time, and how long they were ready to run but had no core. Source: proc(5), /proc/PID/task/TID/schedstat."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """A thread's times: on a core, and ready to run in a run queue."""

    cpu_ns: int = 0
    waited_ns: int = 0

    def since(self, earlier: ThreadTimes) -> ThreadTimes:
        return ThreadTimes(self.cpu_ns - earlier.cpu_ns, self.waited_ns - earlier.waited_ns)


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """A process's threads' times, by thread id."""

    threads: Mapping[int, ThreadTimes]

    @classmethod
    def of(cls, pid: int, with_children: bool = False) -> ProcessTimes:
        """Read them; of a process that is gone, without threads.

        Args:
            with_children: the threads of its children, too: a chip's model is a process that its driver starts.
        """
        threads: dict[int, ThreadTimes] = {}
        if with_children:
            with suppress(psutil.Error):
                for child in psutil.Process(pid).children(recursive=True):
                    threads.update(cls.of(child.pid).threads)
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                cpu, waited, _ = (task / "schedstat").read_text().split()
                threads[int(task.name)] = ThreadTimes(int(cpu), int(waited))
        except (OSError, ValueError):
            pass  # A thread, or the process, ended meanwhile; or the kernel has no such file.
        return cls(threads)

    def since(self, earlier: ProcessTimes) -> ProcessTimes:
        """The times between two readings, of the threads that were there at the later one."""
        none = ThreadTimes()
        return ProcessTimes({tid: times.since(earlier.threads.get(tid, none)) for tid, times in self.threads.items()})

    @property
    def cpu_s(self) -> float:
        """On a core, all threads together."""
        return sum(thread.cpu_ns for thread in self.threads.values()) / 1e9

    @property
    def waited_s(self) -> float:
        """In a run queue, of the thread that worked most: of a switch its packet loop, of a rank its mechanism's."""
        busiest = max(self.threads.values(), key=lambda thread: thread.cpu_ns, default=ThreadTimes())
        return busiest.waited_ns / 1e9
