"""The tutorials' quick steps, as they are written: no root, no training. test_commands.py has all of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import netfold
from tests.conftest import ROOT
from tests.docs.commands import FENCED, UNTIL_READY, Elsewhere, files_on, plain, small, written_on
from tests.switch_processes import free_ports

TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
MECHANISM = ROOT / "docs" / "tutorial-mechanism.md"
P4 = ROOT / "docs" / "tutorial-p4.md"
# Those that compare mechanisms. A service's commands are run, with all pages', in test_commands.py.
COMPARING = [page for page in TUTORIALS if page.stem not in ("tutorial-p4", "tutorial-service")]
QUICK = re.compile(
    r"netfold (ask|simulate(?! sweep| --trace my_net)|schedule|mechanisms)\b|python3 -m pip install (?!--constraint)"
)
COMPARED = re.compile(
    r"<!-- compared with what the simulator says by tests/docs/test_tutorials\.py -->\n(.*?)<!-- end -->", re.S
)
# How many of a page's commands are quick; of the others, 5 or more. Training is not.
QUICK_COMMANDS = {"tutorial-pytorch": 2}
IN_MS = "time (ms)"
TIME = re.compile(r"^([\d.]+) ms$")
# What the extras bring (pyproject.toml): the base install has none of it.
OF_EXTRAS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "sklearn", "mpi4py", "matplotlib", "distributed", "grpc", "jinja2", "p4",
                                  "p4runtime_sh", "google", "fastapi", "uvicorn"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from netfold.cli import run
run()
"""


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who has saved a page's files in a folder and types there."""

    folder: Path

    def __post_init__(self) -> None:
        for page in TUTORIALS:
            for name, text in files_on(page).items():
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_text(text)

    def runs(self, *command: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": f"{ROOT}:{self.folder}", "COLUMNS": "200"}
        return subprocess.run(
            command, cwd=self.folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=60
        )

    def types(self, command: str) -> str:
        """What a command that works prints."""
        done = self.runs("bash", "-c", command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def quick(page: Path) -> list[str]:
    """A page's quick commands, as they are run."""
    made = [small(plain(each)) for each in written_on(page) if QUICK.match(plain(each))]
    return [each for each in made if not isinstance(each, Elsewhere)]


def times(table: str) -> dict[str, list[float]]:
    """Milliseconds by mechanism, of a table with a mechanism's name at the beginning of each row."""
    cells = [[cell.strip(" `") for cell in re.split("[│┃|]", line.strip("│┃| "))] for line in table.splitlines()]
    heads = next((row for row in cells if IN_MS in row), None)
    if heads is not None:  # the unit is in the heading
        at = heads.index(IN_MS)
        return {row[0]: [float(row[at])] for row in cells if len(row) == len(heads) and row != heads}
    return {row[0]: found for row in cells if (found := [float(time) for cell in row for time in TIME.findall(cell)])}


@pytest.mark.parametrize("page", COMPARING, ids=lambda page: page.stem)
def test_quick_steps_work_and_say_what_the_page_says(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    printed = [reader.types(command) for command in quick(page)]
    assert len(printed) >= QUICK_COMMANDS.get(page.stem, 5)
    table = COMPARED.search(page.read_text())
    assert table is not None
    said = times(table[1])
    # A column is of the next command that has all of its mechanisms.
    simulated = [each for each in map(times, printed) if set(said) <= set(each)]
    for mechanism, columns in said.items():
        assert columns == [round(each[mechanism][0], 1) for each in simulated[: len(columns)]], mechanism


def test_the_added_mechanism_is_proved_drawn_and_its_mistake_named(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    blocks = [(block[1], block[2]) for block in FENCED.finditer(MECHANISM.read_text())]
    error, drawn = (text for language, text in blocks if language == "text")
    reader.types(next(each for each in quick(MECHANISM) if "pip" in each))

    def trimmed(text: str) -> list[str]:
        return [line.rstrip() for line in text.splitlines()]

    assert trimmed(reader.types("netfold schedule chain:pieces=2 --workers 3 --draw"))[1:] == trimmed(drawn)
    (proof,) = (text for language, text in blocks if language == "python" and text.startswith("import netfold"))
    proved = reader.runs(sys.executable, "-c", proof)
    assert proved.returncode == 0, proved.stderr

    installed = tmp_path / "chain.py"
    (more,) = (text for language, text in blocks if language == "python" and "collectives=" in text)
    only_all_reduce = installed.read_text()
    installed.write_text(only_all_reduce + more)
    assert "verified" in reader.types("netfold schedule chain:pieces=2 --collective broadcast --root 2")
    assert "broadcast of 1MiB" in reader.types("netfold simulate --size 1MiB --collective broadcast --mechanism chain")
    installed.write_text(only_all_reduce)
    installed.write_text(installed.read_text().replace("reduce=True", "reduce=False"))
    mistaken = reader.runs("netfold", "schedule", "chain", "--workers", "3")
    assert (mistaken.returncode, mistaken.stderr) == (1, error)


def test_the_base_install_simulates(tmp_path: Path) -> None:
    command = ["simulate", "--model", "resnet50", "--workers", "16", "--mechanism", "ring,inagg+mcast"]
    done = Reader(tmp_path).runs(sys.executable, "-c", OF_EXTRAS, *command)
    assert done.returncode == 0, done.stderr
    assert set(times(done.stdout)) == {"ring", "inagg+mcast"}


def test_the_switch_does_with_packets_what_the_page_says(tmp_path: Path) -> None:
    """Every step up to the end of the switch, in the page's order; on ports that are free here."""
    reader = Reader(tmp_path)
    (tmp_path / "p4").symlink_to(ROOT / "p4")
    udp = free_ports(4, socket.SOCK_DGRAM)
    taken = {"9001": str(udp[0]), "9002": str(udp[1]), "9101 + rank": f"{udp[2:]}[rank]"}
    taken["127.0.0.1:9559"] = f"127.0.0.1:{free_ports(1, socket.SOCK_STREAM)[0]}"

    def here(text: str) -> str:
        for old, new in taken.items():
            text = text.replace(old, new)
        return text

    for name in files_on(P4):
        (tmp_path / name).write_text(here((tmp_path / name).read_text()))
    no_route, dropped, received, added, counted = (
        block[2] for block in FENCED.finditer(P4.read_text()) if block[1] == "text"
    )
    start = next(each for each in written_on(P4) if each.endswith(" &"))
    start = here(start.removesuffix(" &")) + f" --ready-file ready --p4rt {taken['127.0.0.1:9559']}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    switch = subprocess.Popen(
        ["bash", "-c", f"exec {start}"], cwd=tmp_path, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL
    )
    try:
        reader.types(UNTIL_READY)
        nothing = received.replace("7", "nothing")
        assert reader.types("python3 contribute.py") == nothing
        assert reader.types("python3 counters.py") == dropped
        reader.types("python3 rules.py")
        assert reader.types("python3 contribute.py") == received
        assert reader.types("python3 contribute.py && python3 counters.py") == received + counted
    finally:
        switch.terminate()
        switch.wait(timeout=20)
    # As the switch wrote it: the first packet, and the second of the sum.
    trace = (tmp_path / "trace.txt").read_text()
    assert trace.index(no_route) < trace.index("trace: packet of", trace.index(no_route)) < trace.index(added)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "docs" / "tutorial-operator.md"], ids=lambda page: page.name
)
def test_the_answer_on_the_page_is_the_answer(page: Path) -> None:
    assert netfold.ask("resnet50", 16, "25gbit").text in " ".join(page.read_text().split())
