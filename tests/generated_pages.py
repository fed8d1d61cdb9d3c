"""The generated part of docs/structure.md: every package, in the words of its docstring.

`python -m tests.structure_page` writes it; tests/unit/test_structure.py compares.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "structure.md"
ROOMS = ("hostlib", "controller", "simulation", "emulation")
BEGIN = "<!-- generated from the packages' docstrings: python -m tests.structure_page -->\n"
END = "<!-- end -->\n"


def packages() -> str:
    """A list of every package of the rooms, with the first paragraph of its docstring."""
    lines = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text()))
            assert docstring, f"{path} has no docstring"
            first = " ".join(docstring.split("\n\n")[0].split())
            lines.append(f"- `{path.parent.relative_to(ROOT)}/`: {first}\n")
    return "\n" + "".join(lines) + "\n"


def with_packages(page: str) -> str:
    """The page with the list as it must be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + packages() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_packages(PAGE.read_text()))
