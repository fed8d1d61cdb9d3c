"""The model of Tofino 1 as a process: the test harness of p4lang/open-p4studio, which takes commands line by line.

It is not part of netfold: docs/tofino.md says where it comes from. Source: pkgsrc/tofino-model/tests/simple_test_harness.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from emulation.errors import ModelError
from emulation.tofino.chip_memory import Register, Word, record

HARNESS = "tofino_test_harness"  # as open-p4studio's build calls it
START_S, ANSWER_S = 120.0, 60.0
RECIRCULATED_S = 0.003  # the model looks once in a millisecond, if it has a processor
# What it says of each entry that it writes, at the levels of the log that are asked for.
_LOGGED = "table:5,script:1"
_CHUNK = 1 << 16
_COMPLAINT = re.compile(r"<(?:stdin|tbl-cfg|hash action setdefaul)>:\d+: (.*)")
_HARMLESS = ("No key value for", "no version/valid field", "no value with matching vpn")

Frames = list[tuple[int, bytes]]
Leaves = Callable[[tuple[int, bytes]], None]


def require_model(command: str = HARNESS) -> None:
    """Check that the model is there. Raises ModelError."""
    program = (shlex.split(command) or [""])[0]
    if shutil.which(program) is None:
        raise ModelError(f"the model of Tofino, {command}, is not on PATH: docs/tofino.md says where it comes from")


class Harness:
    """One chip.

    Args:
        command: its program, and words before those that it is given, as in a shell.
        leaves: called with each (port, frame) that leaves; None for those who use send().

    Raises:
        ModelError: there is no such program, or it does not start.
    """

    def __init__(self, command: str = HARNESS, leaves: Leaves | None = None) -> None:
        self._stack = ExitStack()
        self._mark = 0
        self._log = bytearray()
        self._left = b""
        self._frames: Frames = []
        self._leaves = leaves or self._frames.append
        try:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="netfold-tofino-")))
            self._process = self._start(command)
            self.run([], START_S)
        except BaseException:
            self.close()
            raise

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        frames, leaving = os.pipe()
        os.set_blocking(frames, False)
        self._stack.callback(os.close, frames)
        words = [*shlex.split(command), "-r", "-T", _LOGGED, "--observation-log", f"/dev/fd/{leaving}", "-"]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[leaving],
                cwd=self._folder,
                bufsize=0,
            )
        except OSError as error:
            raise ModelError(f"the model of Tofino, {command}, cannot be started: {error.strerror}") from error
        finally:
            os.close(leaving)
        assert process.stdin is not None and process.stdout is not None
        self._stack.callback(_end, process)
        for end in (process.stdin, process.stdout):
            os.set_blocking(end.fileno(), False)
            self._stack.callback(end.close)
        self._in, self._out, self._observed = process.stdin.fileno(), process.stdout.fileno(), frames
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, commands: Sequence[str], within_s: float = ANSWER_S) -> list[str]:
        """What it prints and logs while it carries out commands.

        Raises:
            ModelError: it refuses one, does not answer, or has ended.
        """
        self._mark += 1
        mark = f"setenv netfold {self._mark}"
        said = self._talk("".join(f"{command}\n" for command in (*commands, mark)).encode(), mark, within_s)
        for line in said:
            complaint = _COMPLAINT.match(line)
            if complaint and not complaint[1].startswith(_HARMLESS):
                raise ModelError(f"the model of Tofino: {complaint[1]}")
        return said

    def _talk(self, request: bytes, mark: str, within_s: float) -> list[str]:
        """Write, and read until the mark comes back: whoever does not read would wait for the other."""
        end = f"script:1:{mark}\n".encode()
        give_up = time.monotonic() + within_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._in, selectors.EVENT_WRITE)
            ready.register(self._out, selectors.EVENT_READ)
            ready.register(self._observed, selectors.EVENT_READ)
            searched = 0
            while (found := self._log.find(end, searched)) < 0:
                searched = max(0, len(self._log) - len(end))
                events = ready.select(max(0.0, give_up - time.monotonic()))
                if not events:
                    raise ModelError(f"the model of Tofino did not answer within {within_s:g} s")
                for key, _ in events:
                    if key.fd == self._in:
                        try:
                            request = request[os.write(self._in, request[:_CHUNK]) :]
                        except BrokenPipeError:
                            request = b""
                        if not request:
                            ready.unregister(self._in)
                    elif key.fd == self._out:
                        self._log += self._read(self._out)
                    else:
                        self._observe()
        self._observe()
        said = self._log[:found].decode(errors="replace").splitlines()
        del self._log[: found + len(end)]
        return said

    def _read(self, which: int) -> bytes:
        data = os.read(which, _CHUNK)
        if not data:
            last = self._log.decode(errors="replace").rstrip().rpartition("\n")[2][-500:]
            raise ModelError(f"the model of Tofino has ended: {last}")
        return data

    def _observe(self) -> None:
        """Collect what has left."""
        while True:
            try:
                data = os.read(self._observed, _CHUNK)
            except BlockingIOError:
                break
            if not data:
                break
            *whole, self._left = (self._left + data).split(b"\n")
            for line in whole:
                port, _, frame = line.partition(b" ")
                self._leaves((int(port), bytes.fromhex(frame.decode())))

    def send(self, arriving: Iterable[tuple[int, bytes]]) -> Frames:
        """Frames in, by port; all that leave because of them, in the order in which they do.

        Raises:
            ModelError: as run.
        """
        self.put(arriving)
        # What is recirculated comes in again from a thread of its own, which idle ones do not wait for. It has looked
        # once all threads sleep again.
        time.sleep(RECIRCULATED_S)
        while self._runs():
            time.sleep(RECIRCULATED_S)
        self.run(["wait"])
        left = self._frames[:]
        self._frames.clear()
        return left

    def _runs(self) -> bool:
        """Whether a thread of it has something to do, be it that it waits for a processor (proc(5), the third field)."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/stat")
        try:
            return any(stat.read_text().rpartition(") ")[2].startswith("R") for stat in stats)
        except OSError:
            return False  # It has ended, as the next command says.

    def put(self, arriving: Iterable[tuple[int, bytes]]) -> None:
        """Frames in, by port. Those that leave go where `leaves` says; the last of them when late() is called.

        Raises:
            ModelError: as run.
        """
        self.run([*(f"packet {port} {frame.hex()}" for port, frame in arriving), "wait"])

    def late(self) -> None:
        """Let go what has left since, without a wait. Raises ModelError, as run."""
        self._observe()
        # It prints what leaves, too, and would wait for a reader.
        with suppress(BlockingIOError):
            self._log += self._read(self._out)

    @property
    def files(self) -> tuple[int, int]:
        """Readable when late() has something to do."""
        return self._out, self._observed

    def load(self, path: Path) -> list[str]:
        """A binary, or the description of its tables, which also writes their constant entries; returns what it says."""
        return self.run([f"load {path}"], START_S)

    def write(self, written: Iterable[Word | Register]) -> None:
        """Words of the chip's memories, and registers."""
        path = self._folder / "words"
        path.write_bytes(record(written))
        self.run([f"load {path}"])

    def close(self) -> None:
        self._stack.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # It has nothing to put in order.
    process.wait()
