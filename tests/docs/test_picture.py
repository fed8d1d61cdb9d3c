"""The picture on the first page is what its committed results make."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from tests.docs.picture import DATA, PICTURE, drawn, kept


def test_the_committed_picture_is_the_committed_results() -> None:
    cells = json.loads(DATA.read_text())
    assert len(cells) >= 5 and cells == kept(cells)
    page = DATA.with_name("simulator-accuracy.md").read_text().split("\n## ")[1]
    said = {
        name: (int(took), int(predicted))
        for name, took, predicted in re.findall(r"^\| `(\S+)` \| (\d+) / (\d+) ms", page, re.M)
    }
    assert {cell["mechanism"]: (round(cell["iteration_ms"]), round(cell["simulated_ms"])) for cell in cells} == said
    assert PICTURE.read_text() == drawn(cells), "python -m tests.docs.picture RESULTS writes both"


def test_the_picture_is_small_and_has_a_bar_for_each_cell() -> None:
    assert PICTURE.stat().st_size < 10_000
    bars = [each for each in ElementTree.parse(PICTURE).iter() if each.get("height") == "17"]
    assert len(bars) == len(json.loads(DATA.read_text()))
