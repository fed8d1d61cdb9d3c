"""What `emulation report` computes and writes; what a browser makes of it is in test_page_browser.py."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from emulation.cli import main
from emulation.errors import EmulationError
from emulation.report import axis_units, canvas, chrome_trace, palette, plots
from emulation.report.build import write_report
from emulation.report.headline import answer, setting_text
from emulation.report.result_files import ReportError, Span, read
from emulation.report.summary import Summary
from emulation.report.timeline import merged
from tests.unit.emulation.report.example_experiment import write_experiment

pytest.importorskip("matplotlib", reason="an extra: pip install 'netfold[plot]'")

Row = dict[str, Any]


def row(mechanism: str, iteration_ms: float | None, **other: Any) -> Row:
    """A cell at 25 Gbit/s with 8 workers."""
    settings = {"model": "vgg16", "workers": 8, "bandwidth": "25gbit", "jobs": 1, "loss": 0.0} | other
    return {
        "cell": "-".join(str(each) for each in (settings["model"], mechanism, *list(settings.values())[1:5])),
        "mechanism": mechanism,
        "dilation": 10,
        "iteration_ms": iteration_ms,
        "iteration_ms_spread": 1.0,
        "simulated_ms": None,
        "valid": True,
        "bottleneck": None,
        "bytes_per_node": {"worker0": {"sent": 100, "received": 300}, "worker1": {"sent": 300, "received": 500}},
        "retransmits": 0,
        "marked": 0,
        "cpu": {"switch": 0.4, "machine": 0.7},
        **settings,
    }


def folder(path: Path, rows: list[Row], finished: str | None = "2026-01-01T11:00:00+00:00") -> Path:
    (path / "results.json").write_text(json.dumps(rows))
    (path / "run.json").write_text(json.dumps({"title": "hand-made", "finished": finished}))
    return path


def summary(path: Path, *rows: Row, **run: Any) -> Summary:
    return Summary(read(folder(path, list(rows), **run)))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reported experiment of two bandwidths; gloo cannot be simulated, and some cells are invalid."""
    path = tmp_path_factory.mktemp("experiment") / "example"
    mechanisms = ("inagg+mcast", "ring", "ps:servers=2", "gloo")
    write_experiment(path, mechanisms=mechanisms, bandwidths=("10gbit", "40gbit"), workers=(4,), dilation=10)
    assert {each["valid"] for each in rows_of(path)} == {True, False}
    write_report(path, None)
    return path


def rows_of(path: Path) -> list[Row]:
    return json.loads((path / "results.json").read_text())


# ---- the computed summary ------------------------------------------------------------------------------------------


def test_the_ranking_and_speed_ups_are_those_computed_by_hand(tmp_path: Path) -> None:
    shown = summary(tmp_path, row("ps", 60.0), row("inagg+mcast", 20.0), row("ring", 30.0), row("mcast", 40.0))
    (ranking,) = shown.rankings
    assert [(r.cell.mechanism, r.place, r.speedup) for r in ranking.rows] == [
        ("inagg+mcast", 1, 1.5),
        ("ring", 2, 1.0),
        ("mcast", 3, 0.75),
        ("ps", 4, 0.5),
    ]
    assert ranking.speedup == 1.5
    assert answer(shown) == [
        "For vgg16 at 25 Gbit/s with 8 workers inagg+mcast is 1.50 times as fast as ring, the best host mechanism "
        "(20.0 ms against 30.0 ms)."
    ]


def test_an_invalid_cell_has_no_place_and_is_compared_with_nothing(tmp_path: Path) -> None:
    shown = summary(tmp_path, row("inagg+mcast", 10.0, valid=False, bottleneck="dilation 40"), row("ring", 30.0),
                   row("inagg", 24.0, simulated_ms=24.0), row("mcast", None, valid=False))  # fmt: skip
    (ranking,) = shown.rankings
    assert [(r.cell.mechanism, r.place, r.speedup) for r in ranking.rows][2:] == [
        ("inagg+mcast", None, None),
        ("mcast", None, None),
    ]
    assert ranking.speedup == 1.25
    assert answer(shown)[1].startswith("2 of 4 cells are invalid")
    assert shown.as_json()["invalid"] == {"vgg16-inagg+mcast-8-25gbit-1-0.0": "dilation 40", shown.cells[3].name: None}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row("ring", 20.0), row("inagg", 30.0)], "the fabric does not help: ring, a host mechanism, is 1.50 times as"),
        ([row("ring", 20.5), row("inagg", 20.0)], "inagg and ring, the best host mechanism, differ by less than their"),
        ([row("inagg", 20.0)], "inagg is the fastest (20.0 ms), but no host mechanism has a valid measurement"),
        ([row("ring", 20.0)], "ring is the fastest (20.0 ms), but no mechanism that uses the fabric has a valid"),
        ([row("ring", 20.0, valid=False)], "nothing valid has been measured."),
    ],
)
def test_the_answer_does_not_say_more_than_there_is(tmp_path: Path, rows: list[Row], says: str) -> None:
    assert f"For vgg16 at 25 Gbit/s with 8 workers {says}" in answer(summary(tmp_path, *rows))[0]


def test_of_several_settings_the_answer_names_the_extremes(tmp_path: Path) -> None:
    cells = [(10, 10.0, 40.0), (25, 10.0, 20.0), (100, 30.0, 10.0)]
    rows = [row(m, t, bandwidth=f"{b}gbit") for b, inagg, ring in cells for m, t in (("inagg", inagg), ("ring", ring))]
    sentences = answer(summary(tmp_path, *rows, row("mcast", 50.0)))
    assert sentences[0].startswith(
        "For vgg16 help from the fabric pays in 2 of 3 settings. It fares best at 10 Gbit/s with 8"
    )
    assert "inagg is 4.00 times as fast as ring" in sentences[0]
    assert (
        "at 100 Gbit/s with 8 workers: there the fabric does not help: ring, a host mechanism, is 3.00 times"
        in sentences[0]
    )
    assert sentences[1:] == ["Of the 9 combinations of these models, mechanisms and settings, 2 were not measured."]


def test_where_a_host_mechanism_is_unknown_nothing_is_said_of_the_best(tmp_path: Path) -> None:
    """At 100 Gbit/s the ring, which is better than the server wherever it is valid, is not."""
    rows = [row("inagg", 10.0), row("ring", 20.0), row("ps", 30.0)]
    fast = [row("inagg", 5.0), row("ring", 8.0, valid=False), row("ps", 25.0)]
    shown = summary(
        tmp_path, *rows, *(each | {"bandwidth": "100gbit", "cell": f"fast{n}"} for n, each in enumerate(fast))
    )
    assert [ranking.unknown_hosts for ranking in shown.rankings] == [(), ("ring",)]
    text = answer(shown)[0]
    assert "inagg is 2.00 times as fast as ring" in text and "5.00" not in text
    assert "pays in 1 of 1 setting." in text and "1 more setting is not counted" in text
    alone = answer(summary(tmp_path, *fast))[0]
    assert alone.endswith(" ring, a host mechanism too, might be faster: it has no valid measurement here.")


def test_errors_of_the_simulation(tmp_path: Path) -> None:
    """-10 %, +20 %, +5 %: the invalid cell and the one that was not simulated do not count."""
    shown = summary(
        tmp_path,
        row("inagg", 100.0, simulated_ms=90.0),
        row("ring", 50.0, simulated_ms=60.0),
        row("ps", 20.0, simulated_ms=21.0),
        row("gloo", 20.0),
        row("mcast", 20.0, simulated_ms=200.0, valid=False),
    )
    off = shown.deviations
    assert off is not None
    assert [each.error for each in off.cells] == pytest.approx([-0.1, 0.2, 0.05])
    assert off.median == pytest.approx(0.1)
    assert (off.worst.cell.mechanism, off.worst.error) == ("ring", pytest.approx(0.2))
    assert shown.as_json()["simulation"]["maximum_error"] == pytest.approx(0.2)
    assert shown.deviations_of("gloo") is None


def test_jobs_and_loss_are_settings_of_their_own(tmp_path: Path) -> None:
    shown = summary(tmp_path, row("ring", 10.0), row("ring", 20.0, jobs=2), row("ring", 30.0, loss=0.01))
    assert len(shown.rankings) == 3
    assert shown.varied() == ("jobs", "loss")
    assert {r.rows[0].cell.iteration_ms: r.rows[0].speedup for r in shown.rankings} == {10.0: 1.0, 20.0: 1.0, 30.0: 1.0}


# ---- files ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What the tests look for in a page: elements with their attributes, and tables' cells with their values."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.values: dict[str, list[str]] = {}  # of <data>, by cell
        self._cell = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.elements.append((tag, values))
        if tag == "tr":
            self._cell = values.get("data-cell", "")
        if tag == "data" and self._cell:
            self.values.setdefault(self._cell, []).append(values["value"])


def test_the_page_loads_nothing(example: Path) -> None:
    text = (example / "report.html").read_text()
    page = Page(text)
    assert "<script" not in text and "@import" not in text
    assert re.findall(r"https?://", text) == []
    assert [url for url in re.findall(r"url\(([^)]*)\)", text) if not url.startswith("#")] == []
    loading = {"link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "script", "image"}
    assert [tag for tag, _ in page.elements if tag in loading] == []
    assert all(attributes.get("src") is None for _, attributes in page.elements)


def test_what_the_page_links_to_is_there(example: Path) -> None:
    page = Page((example / "report.html").read_text())
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    targets |= {attributes["xlink:href"] for _, attributes in page.elements if "xlink:href" in attributes}
    assert [t for t in targets if t.startswith("#") and t[1:] not in ids] == []
    assert [t for t in targets if not t.startswith("#") and not (example / unquote(t)).exists()] == []
    assert len(targets) > 20


def test_numbers_of_the_ranking_are_those_of_the_results(example: Path) -> None:
    values = Page((example / "report.html").read_text()).values
    rows = rows_of(example)
    assert values.keys() == {each["cell"] for each in rows}
    for each in rows:
        hosts = [r["iteration_ms"] for r in rows
                 if r["bandwidth"] == each["bandwidth"] and r["valid"] and "inagg" not in r["mechanism"]]  # fmt: skip
        workers = [b for node, b in each["bytes_per_node"].items() if node.startswith("worker")]
        expected = [each["iteration_ms"], each["iteration_ms_spread"]]
        if each["valid"] and hosts:
            expected.append(min(hosts) / each["iteration_ms"])
        expected += [sum(b[way] for b in workers) / len(workers) for way in ("sent", "received")]
        expected += [each["retransmits"], each["cpu"]["machine"]]
        assert [float(value) for value in values[each["cell"]]] == pytest.approx(expected)


def test_the_table_has_a_line_for_each_cell(example: Path) -> None:
    with (example / "results.csv").open(newline="") as file:
        lines = {line["cell"]: line for line in csv.DictReader(file)}
    for each in rows_of(example):
        line = lines.pop(each["cell"])
        assert float(line["iteration_ms"]) == each["iteration_ms"]
        assert line["valid"] == ("yes" if each["valid"] else "no")
        assert (line["place"] == "") == (not each["valid"])
        assert int(line["marked"]) == each["marked"]
        assert (line["simulated_ms"] == "") == (each["mechanism"] == "gloo")
    assert not lines


def test_traces_are_well_formed(example: Path) -> None:
    for each in rows_of(example):
        trace = json.loads((example / "traces" / f"{each['cell']}.json").read_text())
        spans = json.loads((example / "cells" / f"{each['cell']}.json").read_text())["timeline"]
        complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert len(complete) == sum(map(len, spans.values())) > 0
        assert max(e["ts"] + e["dur"] for e in complete) == pytest.approx(
            1000 * max(s["end_ms"] for node in spans.values() for s in node), abs=0.01
        )
        names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
        assert sorted(names.values()) == sorted(spans)
        threads: dict[tuple[int, int], float] = {}
        for event in complete:  # in order, and none begins before the last of its thread has ended
            assert event.keys() >= {"name", "cat", "ts", "dur", "pid", "tid"} and event["dur"] >= 0
            place = (event["pid"], event["tid"])
            assert event["ts"] >= threads.get(place, 0) - 0.002
            threads[place] = event["ts"] + event["dur"]


def test_plots_are_written_both_ways(example: Path) -> None:
    names = {path.stem for path in (example / "plots").iterdir()}
    assert {"speedup", "bytes-alexnet", "timeline-alexnet", "simulated", "time-alexnet-bandwidth-at-4-workers"} == names
    for name in names:
        assert (example / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (example / "plots" / f"{name}.svg").read_text().startswith("<?xml")


def test_what_was_varied_is_drawn_along(tmp_path: Path) -> None:
    """Jobs and loss at the other axes' reference; a mechanism that is invalid at one point keeps its others."""
    times = {"ring": 40.0, "inagg+mcast": 20.0}
    points: list[Row] = [{}, {"jobs": 2}, {"jobs": 4}, {"loss": 0.001}, {"loss": 0.01}]
    rows = [row(m, t * p.get("jobs", 1), **p) for m, t in times.items() for p in points]
    folder(tmp_path, [*rows, row("ps", 90.0), row("ps", None, jobs=2, valid=False), row("ps", 300.0, jobs=4)])
    write_report(tmp_path, None)
    drawn = {path.stem for path in (tmp_path / "plots").glob("time-*.svg")}
    assert drawn == {"time-vgg16-jobs-at-25-Gbit-s-8-workers-0-loss", "time-vgg16-loss-at-25-Gbit-s-8-workers-1-job"}


def test_where_no_cell_is_valid_there_are_times_causes_and_a_dilation(tmp_path: Path) -> None:
    waited = "switch waited for a core for 48% of the time: run again with --dilation 7"
    late = "workers woke up late, by 0.5% of an iteration: run again with --dilation 12"
    folder(
        tmp_path,
        [
            row("ring", 30.0, valid=False, bottleneck=waited, cause="waited", enough_dilation=7),
            row("inagg", 20.0, valid=False, bottleneck=late, cause="late", enough_dilation=12),
            row("ps", None, valid=False),
        ],
    )
    shown, page = write_report(tmp_path, None)
    text = page.read_text()
    assert 'id="no-valid-cell"' in text and "<code>--dilation 12</code>" in text
    assert text.count(waited) == text.count(late) == 2  # above the ranking, and among the invalid cells
    assert "The cause was not recorded." in text
    assert 'id="speedup"' not in text and not (tmp_path / "plots" / "speedup.svg").exists()
    drawn = (tmp_path / "plots" / "time-vgg16.svg").read_text()
    assert "30.0, invalid" in drawn and "20.0, invalid" in drawn
    assert shown.as_json()["enough_dilation"] == {shown.cells[0].name: 7, shown.cells[1].name: 12}


def test_the_speed_up_is_first_and_every_plot_fits_a_phone(tmp_path: Path) -> None:
    times = {"ring": 40.0, "ps": 50.0, "inagg+mcast": 20.0}
    folder(tmp_path, [row(m, t * f, bandwidth=b) for m, t in times.items() for b, f in (("10gbit", 2), ("25gbit", 1))])
    _, page = write_report(tmp_path, None)
    text = page.read_text()
    assert text.index('id="speedup"') < text.index('id="ranking"') < text.index('id="time"')
    assert "2.00" in (tmp_path / "plots" / "speedup.svg").read_text()
    widths = [float(each) for each in re.findall(r'style="max-width: (\d+)px"', text)]
    assert len(widths) == text.count("<svg ") and max(widths) <= 442  # letters of 12 px are 10 px on 375 px


def test_a_setting_may_have_slots_and_a_delay(tmp_path: Path) -> None:
    shown = summary(
        tmp_path,
        row("inagg+mcast", 10.0, cell="few", slots=16, delay="5us"),
        row("inagg+mcast", 4.0, cell="many", slots=128, delay="5us"),
    )
    assert shown.varied() == ("slots",)
    assert {r.setting.slots: setting_text(r.setting, shown) for r in shown.rankings} == {
        16: "25 Gbit/s with 8 workers, 16 slots, 5 us per link",
        128: "25 Gbit/s with 8 workers, 128 slots, 5 us per link",
    }
    write_report(tmp_path, None)
    assert (tmp_path / "plots" / "time-vgg16-slots-at-25-Gbit-s-8-workers-5-us-per-link.svg").exists()


def test_the_same_results_make_the_same_page(example: Path, tmp_path: Path) -> None:
    copy = tmp_path / "example"
    shutil.copytree(example, copy, ignore=shutil.ignore_patterns("plots", "traces", "*.csv", "*.html"))
    write_report(copy, None)
    # Plots' layout is solved in floating point, in an order that is not the same each time.
    one, other = (
        re.sub(r"<svg.*?</svg>", "", (where / "report.html").read_text(), flags=re.S) for where in (example, copy)
    )
    assert one == other
    for name in ("results.csv", *(f"traces/{each['cell']}.json" for each in rows_of(example))):
        assert (copy / name).read_bytes() == (example / name).read_bytes()


def test_what_the_experiment_says_is_not_markup(tmp_path: Path) -> None:
    name = '<img src=x onerror="alert(1)">&'
    folder(tmp_path, [row("ring", 10.0, model=name, bottleneck=name, cell="a & b#c?%41")])
    cells = tmp_path / "cells"
    cells.mkdir()
    span = {"kind": "forward", "name": name, "start_ms": 0, "end_ms": 1}
    (cells / "a & b#c?%41.json").write_text(json.dumps({"timeline": {"worker0": [span]}}))
    _, page = write_report(tmp_path, None)
    assert all(tag != "img" for tag, _ in Page(page.read_text()).elements)
    assert "traces/a%20%26%20b%23c%3F%2541.json" in page.read_text()


def test_an_experiment_that_has_not_finished(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"title": "begun", "finished": None}))
    _, page = write_report(tmp_path, None)
    assert "Nothing has been measured yet." in page.read_text() and "<strong>Unfinished.</strong>" in page.read_text()
    folder(tmp_path, [row("ring", 10.0)], finished=None)
    shown, page = write_report(tmp_path, None)
    assert answer(shown)[1:] == ["The experiment has not finished: this is what there is so far."]
    assert "<strong>Unfinished.</strong>" in page.read_text()


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_the_summary_and_writes_elsewhere(example: Path, tmp_path: Path) -> None:
    page = tmp_path / "here.html"
    done = CliRunner().invoke(main, ["report", str(example), "--output", str(page), "--json"], catch_exceptions=False)
    printed = json.loads(done.stdout)
    assert printed == json.loads(json.dumps(Summary(read(example)).as_json()))
    linked = re.findall(r'href="([^"#]*results\.csv)"', page.read_text())
    assert [(page.parent / each).resolve() for each in linked] == [(example / "results.csv").resolve()]
    folder(tmp_path, [row("ring", 10.0)])
    done = CliRunner().invoke(main, ["report", str(tmp_path)], catch_exceptions=False)
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("run.json", None, "run.json: is missing"),
        ("run.json", "[]", "run.json: must be an object, not []"),
        ("run.json", '{"title": 3}', "run.json, title: must be a string, not 3"),
        ("results.json", None, "results.json: is missing"),
        ("results.json", "{", "results.json: is not JSON: Expecting property name"),
        ("results.json", "[" * 100_000, "results.json: is not JSON: "),
        ("results.json", "{}", "results.json: must be a list of cells, not {}"),
        ("results.json", "[3]", "results.json, [0]: must be an object, not 3"),
        ("results.json", {"model": None}, "results.json, [0].model: must be a string, not None"),
        ("results.json", {"mechanism": "rings"}, "results.json, [0].mechanism: unknown mechanism 'rings'; legal are "),
        ("results.json", {"bandwidth": "fast"}, "results.json, [0].bandwidth: bandwidth 'fast' is not a number"),
        ("results.json", {"workers": 2.5}, "results.json, [0].workers: must be a whole number, not 2.5"),
        ("results.json", {"iteration_ms": None}, "results.json, [0].iteration_ms: must be a number of 0 or more, not None"),
        ("results.json", {"iteration_ms": float("nan")}, "results.json, [0].iteration_ms: must be a number of 0 or more"),
        ("results.json", {"iteration_ms": 0}, "results.json, [0].iteration_ms: must be above 0"),
        ("results.json", {"valid": "yes"}, "results.json, [0].valid: must be true or false, not 'yes'"),
        ("results.json", {"cell": "../up"}, "results.json, [0].cell: must be a file's name, not '../up'"),
        ("results.json", {"bytes_per_node": {"worker0": {"sent": 1}}}, "bytes_per_node.worker0.received: is missing"),
        ("cells/ring.json", '{"timeline": {"worker0": 7}}', "cells/ring.json, timeline.worker0: must be a list, not 7"),
        ("cells/ring.json", '{"timeline": {"w": [{"kind": "nap"}]}}', "timeline.w[0].kind: must be one of forward, back"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_named_in_one_line(tmp_path: Path, file: str, text: Any, says: str) -> None:
    (tmp_path / "cells").mkdir()
    good = row("ring", 10.0, cell="ring")
    folder(tmp_path, [good | text if isinstance(text, dict) else good])
    if text is None:
        (tmp_path / file).unlink()
    elif isinstance(text, str):
        (tmp_path / file).write_text(text)
    with pytest.raises(ReportError) as caught:
        write_report(tmp_path, None)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert str(tmp_path / file) in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_cells_are_there_once(tmp_path: Path) -> None:
    folder(tmp_path, [row("ring", 10.0), row("ring", 11.0)])
    with pytest.raises(ReportError, match=r"\[1\]\.cell: there is a cell 'vgg16-ring-8-25gbit-1-0.0' already"):
        read(tmp_path)
    folder(tmp_path, [row("ring", 10.0), row("ring", 11.0, cell="another")])
    with pytest.raises(ReportError, match=r"\[1\]: 'another' has the mechanism and setting of 'vgg16-ring"):
        read(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nowhere: is not a folder"):
        write_report(tmp_path / "nowhere", None)


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder(tmp_path, [row("ring", 10.0)])
    with pytest.raises(ReportError, match="cannot be written: No such file or directory"):
        write_report(tmp_path, tmp_path / "nowhere" / "page.html")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EmulationError, match=r"^a report needs matplotlib: pip install 'netfold\[emulation\]'$"):
        canvas.require_libraries()


# ---- parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (axis_units.milliseconds(86.74), "86.7 ms"),
        (axis_units.milliseconds(1234.5), "1,234 ms"),
        (axis_units.milliseconds(0.00155), "0.002 ms"),
        (axis_units.rate(25e9), "25 Gbit/s"),
        (axis_units.rate(2.5e6), "2.50 Mbit/s"),
        (axis_units.size(528_000_000), "528 MB"),
        (axis_units.size(0), "0 B"),
        (axis_units.signed_percent(-0.0321), "\N{MINUS SIGN}3.2 %"),
        (axis_units.percent(0.0001), "0.01 %"),
        (axis_units.percent(0.043), "4.3 %"),
        (axis_units.percent(0.88), "88 %"),
        (axis_units.counted(1, "cell"), "1 cell"),
        (axis_units.moment("2026-01-01T10:00:59+00:00"), "2026-01-01 10:00 UTC"),
        (axis_units.moment("yesterday"), "yesterday"),
    ],
)
def test_numbers_are_shown_with_units(shown: str, text: str) -> None:
    assert shown == text


def test_colours_are_a_mechanism_s_own() -> None:
    names = {"ring": False, "inagg+mcast": True, "ps:servers=4": False, "inagg+mcast:racks=2": True}
    looks = palette.looks(names)
    assert looks["ps:servers=4"].colour == palette.HUES["ps"]
    assert looks["ring"].colour == palette.looks({"gloo": False, "ring": False})["ring"].colour
    assert len({look.colour for look in looks.values()}) == len({look.marker for look in looks.values()}) == 4
    assert [look.dash for look in looks.values()] == ["--", "-", "--", "-"]
    crowd = palette.looks({f"ps:servers={n}": False for n in range(1, 31)})
    assert {look.colour for look in crowd.values()} <= palette.DARK_FORMS.keys()


def luminance(colour: str) -> float:
    """Relative. Source: WCAG 2.1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [lambda colour: colour, palette.DARK_FORMS.__getitem__], ids=["light", "dark"])
def test_text_and_lines_stand_out(scheme: Any) -> None:
    """WCAG 2.1: 4.5 for text, 3 for graphics."""
    assert all(contrast(scheme(ink), scheme(palette.PAPER)) >= 4.5 for ink in (palette.INK, palette.FAINT))
    hues = [*palette.HUES.values(), palette.SPARE, palette.BACKWARD]
    assert [hue for hue in hues if contrast(scheme(hue), scheme(palette.PAPER)) < 3] == []


def span(start_ms: float, end_ms: float) -> Span:
    return Span("communication", "bucket", start_ms, end_ms)


def test_spans_that_touch_are_drawn_as_one() -> None:
    assert merged([span(5, 6), span(0, 2), span(1, 3), span(3.05, 4)], 0.1) == [(0, 4), (5, 6)]


def test_nodes_of_which_there_are_many_are_named_by_the_ends() -> None:
    nodes = [*(f"worker{n}" for n in range(32)), "server0", "server1", "spine"]
    assert plots.node_ticks(nodes) == ([15.5, 32.5, 34.0], ["w0 to w31", "s0 to s1", "spine"])
    assert plots.node_ticks(["worker0", "server0"]) == ([0, 1], ["w0", "s0"])
    assert sorted(["server0", "worker10", "worker9"], key=plots.node_order) == ["worker9", "worker10", "server0"]


def test_lanes_hold_what_does_not_overlap() -> None:
    spans = [span(0, 4), span(1, 2), span(2, 3), span(4, 5)]
    assert chrome_trace.lanes(spans) == [[spans[0], spans[3]], [spans[1], spans[2]]]
