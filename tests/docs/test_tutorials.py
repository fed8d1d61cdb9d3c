"""The tutorials' quick steps, as they are written: no root, no training. test_commands.py has all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.commands import FENCED, Elsewhere, files_on, plain, small, written_on

TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
MECHANISM = ROOT / "docs" / "tutorial-mechanism.md"
QUICK = re.compile(
    r"netfold (simulate(?! sweep| --trace my_net)|schedule|mechanisms)\b|python3 -m pip install (?!--constraint)"
)
COMPARED = re.compile(
    r"<!-- compared with what the simulator says by tests/docs/test_tutorials\.py -->\n(.*?)<!-- end -->", re.S
)
# How many of a page's commands are quick; of the others, 5 or more. Training is not.
QUICK_COMMANDS = {"tutorial-pytorch": 2}
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
    cells = [[cell.strip(" `") for cell in re.split("[│|]", line.strip("│| "))] for line in table.splitlines()]
    return {row[0]: found for row in cells if (found := [float(time) for cell in row for time in TIME.findall(cell)])}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
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

    assert trimmed(reader.types("netfold schedule chain:pieces=2 -n 3 --draw"))[1:] == trimmed(drawn)
    (proof,) = (text for language, text in blocks if language == "python" and text.startswith("import netfold"))
    proved = reader.runs(sys.executable, "-c", proof)
    assert proved.returncode == 0, proved.stderr

    installed = tmp_path / "chain.py"
    installed.write_text(installed.read_text().replace("reduce=True", "reduce=False"))
    mistaken = reader.runs("netfold", "schedule", "chain", "-n", "3")
    assert (mistaken.returncode, mistaken.stderr) == (1, error)


def test_the_base_install_simulates(tmp_path: Path) -> None:
    command = ["simulate", "--model", "resnet50", "--workers", "16", "--mechanism", "ring,inagg+mcast"]
    done = Reader(tmp_path).runs(sys.executable, "-c", OF_EXTRAS, *command)
    assert done.returncode == 0, done.stderr
    assert set(times(done.stdout)) == {"ring", "inagg+mcast"}
