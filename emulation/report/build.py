"""Build the page and the files beside it from an experiment's folder."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from emulation.report import axis_units, canvas, chrome_trace, palette, plots
from emulation.report.canvas import Plot
from emulation.report.headline import answer, setting_text
from emulation.report.palette import Look
from emulation.report.result_files import ReportError, read
from emulation.report.summary import Summary
from emulation.report.timeline import timelines

HERE = Path(__file__).parent
PAGE = "report.html"
FEW_ROWS = 40  # rows that a table shows at once; longer tables are folded
SHOWN_AS = (
    axis_units.milliseconds,
    axis_units.size,
    axis_units.times,
    axis_units.percent,
    axis_units.signed_percent,
    axis_units.counted,
    axis_units.moment,
)

Progress = Callable[[int, int], None]  # number of finished plots, and of all plots


def write_report(
    folder: Path, output: Path | None, progress: Progress = lambda done, total: None
) -> tuple[Summary, Path]:
    """Write the page, plots/, traces/ and results.csv; all but the page go into the experiment's folder.

    Args:
        output: the page; None: report.html in the folder.

    Raises:
        ReportError: a file of the experiment is missing or malformed, or the report cannot be written.
        EmulationError: a library is missing.
    """
    canvas.require_libraries()
    summary = Summary(read(folder))
    page = folder / PAGE if output is None else output
    try:
        _write_table(summary)
        _write_traces(summary)
        shown = _write_plots(summary, progress)
        text = _page(summary, shown, os.path.relpath(folder, page.parent))
        draft = page.with_name(f".{page.name}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(page)
    except OSError as error:
        raise ReportError(Path(error.filename or page), f"cannot be written: {error.strerror}") from None
    return summary, page


# ---- files ---------------------------------------------------------------------------------------------------------


def _write_table(summary: Summary) -> None:
    written = io.StringIO()
    rows = list(_csv_rows(summary))
    if rows:
        table = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    (summary.experiment.folder / "results.csv").write_text(written.getvalue(), encoding="utf-8")


def _csv_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """A flat row for each cell; missing values are empty."""
    errors = {each.cell.name: each.error for each in summary.deviations.cells} if summary.deviations else {}
    watched = list(dict.fromkeys(what for cell in summary.cells for what in cell.cpu))
    for ranking in summary.rankings:
        for row in ranking.rows:
            cell, s = row.cell, row.cell.setting
            of = {kind: cell.mean_bytes(kind) for kind in ("worker", "server")}
            yield {
                "cell": cell.name,
                "model": s.model,
                "mechanism": cell.mechanism,
                "workers": s.workers,
                "bandwidth_bits_s": s.bandwidth_bits_s,
                "jobs": s.jobs,
                "loss": s.loss,
                "slots": s.slots,
                "delay_ns": s.delay_ns,
                "dilation": cell.dilation,
                "iteration_ms": cell.iteration_ms,
                "iteration_ms_spread": cell.spread_ms,
                "place": row.place,
                "speedup_over_best_host": row.speedup,
                "simulated_ms": cell.simulated_ms,
                "simulation_error": errors.get(cell.name),
                "valid": "yes" if cell.valid else "no",
                "bottleneck": cell.bottleneck,
                "cause": cell.cause,
                "enough_dilation": cell.enough_dilation,
                **{f"{kind}_sent_bytes": mean and mean.sent_bytes for kind, mean in of.items()},
                **{f"{kind}_received_bytes": mean and mean.received_bytes for kind, mean in of.items()},
                "retransmits": cell.retransmits,
                "marked": cell.marked,
                **{f"cpu_{what}": cell.cpu.get(what) for what in watched},
            }


def _write_traces(summary: Summary) -> None:
    folder = summary.experiment.folder / "traces"
    folder.mkdir(exist_ok=True)
    for cell in summary.cells:
        if timeline := summary.experiment.timelines.get(cell.name):
            text = json.dumps(chrome_trace.trace(cell, timeline), separators=(",", ":"))
            (folder / f"{cell.name}.json").write_text(text, encoding="utf-8")


Shown = list[tuple[str, str, Plot, str]]  # section, model, plot, the SVG for the page


def _write_plots(summary: Summary, progress: Progress) -> Shown:
    folder = summary.experiment.folder / "plots"
    folder.mkdir(exist_ok=True)
    shown = []
    with canvas.style():
        looks = palette.looks({cell.mechanism: cell.needs_fabric for cell in summary.cells})
        drawn = list(_plots(summary, looks))
        for done, (section, model, plot) in enumerate(drawn):
            progress(done, len(drawn))
            shown.append((section, model, plot, canvas.inline(plot, canvas.write(plot, folder))))
        progress(len(drawn), len(drawn))
    return shown


def _plots(summary: Summary, looks: Mapping[str, Look]) -> Iterator[tuple[str, str, Plot]]:
    if (plot_ := plots.speedups(summary, looks)) is not None:
        yield "speedup", "", plot_
    for model in summary.models:
        reference = summary.reference(model)
        lines = list(plots.times_along(summary, looks, model))
        for plot in lines or [plots.times(summary, looks, reference)]:
            yield "time", model, plot
        if (plot_ := plots.node_bytes(summary, looks, reference)) is not None:
            yield "bytes", model, plot_
        if (plot_ := timelines(summary, looks, reference)) is not None:
            yield "timeline", model, plot_
    if (plot_ := plots.simulated(summary, looks)) is not None:
        yield "simulated", "", plot_


# ---- the page ------------------------------------------------------------------------------------------------------


def _page(summary: Summary, shown: Shown, folder: str) -> str:
    """Fill in the template.

    Args:
        folder: relative path from the page to the experiment's folder.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for shown_as in SHOWN_AS:
        environment.filters[shown_as.__name__] = shown_as
    looks = palette.looks({cell.mechanism: cell.needs_fabric for cell in summary.cells})
    figures = [
        {"section": section, "model": model, "plot": plot, "svg": Markup(svg)} for section, model, plot, svg in shown
    ]
    return environment.get_template("page.html").render(
        summary=summary,
        experiment=summary.experiment,
        answer=answer(summary),
        figures=figures,
        style=Markup(page_style()),
        swatch={name: Markup(canvas.variable(look.colour)) for name, look in looks.items()},
        setting_text=lambda setting: setting_text(setting, summary),
        link=lambda *parts: "/".join([quote(folder), *map(quote, parts)]),
        few_rows=FEW_ROWS,
        facts=_facts(summary),
    )


def page_style() -> str:
    """The style sheet of pages, with the palette's colours for light and dark."""
    light = " ".join(f"--c{colour[1:]}: {colour};" for colour in palette.DARK_FORMS)
    dark = " ".join(f"--c{colour[1:]}: {form};" for colour, form in palette.DARK_FORMS.items())
    text = (HERE / "page.css").read_text(encoding="utf-8")
    return text.replace("/* light colours */", light).replace("/* dark colours */", dark)


def _facts(summary: Summary) -> list[tuple[str, str]]:
    """Facts about the run, as name and value."""
    run = summary.experiment.run
    dilations = sorted({cell.dilation for cell in summary.cells})
    facts = [
        ("experiment", run.get("experiment")),
        ("started", axis_units.moment(str(run.get("started") or "not recorded"))),
        ("finished", axis_units.moment(str(run.get("finished") or "not yet"))),
        ("command", run.get("command")),
        ("seed", run.get("seed")),
        ("realisation", run.get("realisation")),
        ("switch", run.get("switch")),
        ("topology", _listed(run.get("topology"))),
        ("predictor", run.get("predictor")),
        ("replay", _listed(run.get("replay"))),
        ("time dilation", " to ".join(f"{d:g}" for d in dict.fromkeys((dilations[0], dilations[-1]))) if dilations else None),
        ("versions", _listed(run.get("versions"))),
        ("machine", _machine(run.get("machine") or {})),
    ]  # fmt: skip
    return [(name, str(value)) for name, value in facts if value is not None]


def _machine(machine: Mapping[str, Any]) -> str | None:
    known = {"cpu": "{}", "cores": "{} cores", "memory_gib": "{:.4g} GiB of memory"}
    parts = [form.format(machine[name]) for name, form in known.items() if machine.get(name) is not None]
    others = _listed({name: value for name, value in machine.items() if name not in known})
    return ", ".join([*parts, *([others] if others else [])]) or None


def _listed(table: Mapping[str, Any] | None) -> str | None:
    if table is None:
        return None
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in table.items()}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
