"""The picture on README and the first page: iteration times of one emulated experiment, as bars.

`python -m tests.docs.picture` draws docs/measurements/fabric-vs-host.svg from fabric-vs-host.json beside it, the VGG-16 cells of
docs/measurements/simulator-accuracy.md. To renew these first:

    emulation run fabric-vs-host --only vgg16 --output DIR
    python -m tests.docs.picture DIR/results.json
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from hostlib.strategies.strategy import choose
from tests.conftest import ROOT

DATA = ROOT / "docs/measurements/fabric-vs-host.json"
PICTURE = DATA.with_suffix(".svg")
KEPT = ("model", "mechanism", "workers", "bandwidth", "iteration_ms", "simulated_ms", "valid", "dilation")

WIDTH, LEFT, RIGHT, TOP, ROW = 400, 132, 66, 74, 25
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 14px; }
.small { font-size: 12px; fill: #57606a; }
.card { fill: #ffffff; }
.fabric { fill: #0969da; }
.hosts { fill: #9aa4af; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.small { fill: #9da7b3; }
.card { fill: #161b22; }
.fabric { fill: #4493f8; }
.hosts { fill: #6e7681; }
}
"""


def kept(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The valid cells, the fastest first, with what the picture and its page show.

    Args:
        results: an experiment's results.json.
    """
    cells = [{key: cell[key] for key in KEPT} for cell in results if cell["valid"]]
    return sorted(cells, key=lambda cell: float(cell["iteration_ms"]))


def drawn(cells: list[dict[str, Any]]) -> str:
    """The cells as an SVG, which follows the reader's light or dark scheme. Bars of mechanisms that use the switch stand out."""
    height = TOP + ROW * len(cells) + 12
    longest = max(cell["iteration_ms"] for cell in cells)
    first = cells[0]
    title = f"{first['model'].upper()[:3]}-{first['model'][3:]}, {first['workers']} workers, 25 Gbit/s: one iteration"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="600" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="card" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="14" y="25">{escape(title)}</text>',
        '<rect class="fabric" x="14" y="41" width="11" height="11"/>',
        '<text class="small" x="31" y="51">the switch sums or multicasts</text>',
        '<rect class="hosts" x="232" y="41" width="11" height="11"/>',
        '<text class="small" x="249" y="51">hosts alone</text>',
    ]
    for number, cell in enumerate(cells):
        y = TOP + ROW * number
        width = (WIDTH - LEFT - RIGHT) * cell["iteration_ms"] / longest
        kind = "fabric" if choose(cell["mechanism"]).mechanism.needs_fabric else "hosts"
        time = f"{cell['iteration_ms'] / 1000:.2f} s"
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(cell["mechanism"])}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y + 1}" width="{width:.1f}" height="17" rx="2"/>',
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 14}">{time}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found = kept(json.loads(Path(sys.argv[1]).read_text()))
        DATA.write_text("[\n" + ",\n".join(json.dumps(cell) for cell in found) + "\n]\n")
    PICTURE.write_text(drawn(json.loads(DATA.read_text())))
