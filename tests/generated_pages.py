"""What pages of docs/ repeat of the code, made of it: packages, kinds of topology,
the Python API, the commands.

`python -m tests.generated_pages` writes it; tests/unit/test_structure.py compares. What comes of the wire format, p4/generate.py
writes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hostlib.topology.topology_kinds import kinds
from hostlib.topology.topology_table import DEFAULT_KIND
from tests import api_page, commands_page

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("hostlib", "controller", "simulation", "emulation", "netfold")
COMMANDS = ROOT / "docs/commands.md"
END = "<!-- end -->\n"


@dataclass(frozen=True, slots=True)
class Generated:
    """A part of a page.

    Attributes:
        source: what it is made of, as the mark at its beginning says.
    """

    page: Path
    source: str
    text: Callable[[], str]

    @property
    def begin(self) -> str:
        return f"<!-- generated from {self.source}: python -m tests.generated_pages -->\n"

    def renewed(self, page: str) -> str:
        """The page with this part as it must be."""
        before, begin, rest = page.partition(self.begin)
        _, end, after = rest.partition(END)
        assert begin and end, f"{self.page} has no part generated from {self.source}"
        return f"{before}{begin}\n{self.text()}\n{end}{after}"


def packages() -> str:
    """A list of every package of the rooms, with the first paragraph of its docstring."""
    lines = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text()))
            assert docstring, f"{path} has no docstring"
            first = " ".join(docstring.split("\n\n")[0].split())
            lines.append(f"- `{path.parent.relative_to(ROOT)}/`: {first}\n")
    return "".join(lines)


def topologies() -> str:
    """A table of the kinds of topology, with the keys that each has."""
    lines = ["| kind | what it is | keys |\n", "|---|---|---|\n"]
    for kind in kinds().values():
        default = ", if nothing is said" if kind.name == DEFAULT_KIND else ""
        lines.append(f"| `{kind.name}`{default} | {kind.summary} | {', '.join(f'`{key}`' for key in kind.keys)} |\n")
    return "".join(lines)


PARTS = (
    Generated(ROOT / "docs/structure.md", "the packages' docstrings", packages),
    Generated(ROOT / "docs/emulation-networks.md", "hostlib/topology/builtin/", topologies),
    Generated(ROOT / "docs/api.md", "netfold.__all__", api_page.reference),
    Generated(COMMANDS, "the commands", commands_page.reference),
    Generated(COMMANDS, "the flags", commands_page.flags),
    Generated(COMMANDS, "the kinds of values", commands_page.units),
    Generated(COMMANDS, "the renamed options", commands_page.old_spellings),
)


if __name__ == "__main__":
    for part in PARTS:
        part.page.write_text(part.renewed(part.page.read_text()))
