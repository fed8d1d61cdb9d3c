"""A recommendation as one page that an operator can be shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulation.report.build import page_style
from emulation.report.canvas import require_libraries
from hostlib.errors import RunError
from hostlib.system.user_file import is_writable
from netfold.job_mix import MixValue
from simulation.answers.answer_table import milliseconds
from simulation.experiments.scenario import Scenario
from simulation.recommendation.changes import Map, Place
from simulation.recommendation.recommendation import Recommendation, change_text, duration, gigabytes, three_digits, use
from simulation.recommendation.recommendation_table import FITS, shown

HERE = Path(__file__).parent
ENDING = ".html"
SATURATED = 3.0  # times as fast: the map's strongest colour


def require_writable(path: Path) -> None:
    """Check a page's path before anything is searched.

    Raises:
        RunError: it has another ending, or it cannot be written.
        EmulationError: a library is missing.
    """
    require_libraries()
    if path.suffix != ENDING:
        raise RunError(f"--report: {path} is no page; its name must end in {ENDING}")
    if not is_writable(path):
        raise RunError(f"--report: {path} cannot be written: its folder does not exist or is not writable")


def write_page(found: Recommendation, title: str, cell: Scenario, mix: MixValue | None, path: Path) -> None:
    """Write the page, which holds all it shows.

    Args:
        cell: of which it is.

    Raises:
        RunError: the file cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ms"] = milliseconds
    environment.filters["gigabytes"] = gigabytes
    environment.filters["duration"] = duration
    environment.filters["breakable"] = _breakable
    style = page_style() + "\n" + (HERE / "recommendation_page.css").read_text(encoding="utf-8")
    rows = shown(found)
    text = environment.get_template("recommendation_page.html").render(
        found=found,
        title=title,
        today_bits_s=cell.network.bandwidth_bits_s,
        mix=mix,
        style=Markup(style),
        chosen=None if found.recommended is None else use(found.recommended),
        rows=rows,
        longest_ms=max((each.high_ms for each in rows if each.finalist), default=1.0),
        fits=FITS,
        changes=[change_text(each) for each in found.changes],
        maps=[] if found.map is None else _maps(found.map, found.tflops, cell.workers * cell.gpus_per_host),
        rates=[] if found.map is None else [three_digits(each / 1e9) for each in found.map.bandwidths_bits_s],
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"--report: {path} cannot be written: {error.strerror}") from None


def _breakable(name: str) -> Any:
    """Text with names of plans, which may be broken after their separators."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([/:+])", r"\1<wbr>", str(escape(name))))


def _maps(of: Map, tflops: float | None, workers: int) -> list[dict[str, Any]]:
    """By the GPU's speed, and by the number of workers where others can be played."""
    speeds = [
        _row(three_digits(speed if tflops is None else speed * tflops), speed == 1, places)
        for speed, places in zip(of.speeds, of.places, strict=True)
    ]
    counts = [
        _row(f"{count:,}", count == workers, places) for count, places in zip(of.workers, of.by_workers, strict=True)
    ]
    unit = "times today's" if tflops is None else "TFLOP/s"
    made = [
        {
            "id": "map",
            "what": "GPU speed",
            "by": "the speed that training achieves on a GPU",
            "unit": unit,
            "rows": speeds,
        }
    ]
    if len(counts) > 1:
        by = "the number of workers, each with its own batch"
        made.append({"id": "map-workers", "what": "number of workers", "by": by, "unit": "workers", "rows": counts})
    return made


def _row(label: str, today: bool, places: Sequence[Place]) -> dict[str, Any]:
    return {
        "label": label,
        "today": today,
        "places": [
            {
                "of": place,
                "kind": "fabric" if place.pays else "hosts" if place.speedup < 1 else "alike",
                "share": _share(place),
                "best": place.fabric if place.pays else place.hosts,
            }
            for place in places
        ],
    }


def _share(place: Place) -> int:
    """How strongly a place is coloured, in percent."""
    times = max(place.speedup, 1 / place.speedup) if place.speedup else 1.0
    return round(15 + 65 * min(1.0, (times - 1) / (SATURATED - 1)))
