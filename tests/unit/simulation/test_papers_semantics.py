"""What `--semantics papers` plays: whole tensors without headers, to the picosecond as recorded.

Of each cell: an iteration's time (of the first job if there are several), events, bytes sent and received over all
links, and each job's time.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from simulation.cli import main
from tests.conftest import ROOT

RECORDED = json.loads((ROOT / "tests/data/papers_semantics.json").read_text())


@pytest.mark.parametrize("cell", RECORDED, ids=lambda cell: cell["words"])
def test_the_papers_semantics_are_as_recorded(cell: dict[str, Any]) -> None:
    done = CliRunner().invoke(main, ["run", *cell["words"].split(), "--semantics", "papers", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.output)
    for name, (iteration_s, events, sent, received, *jobs) in cell["results"].items():
        result = printed[name] if name else printed
        links = result["bytes_per_link"].values()
        assert result["iteration_s"] == max(jobs, default=iteration_s), name
        assert [sum(link[way] for link in links) for way in ("sent", "received")] == [sent, received], name
        assert (result["events"], result.get("jobs_iteration_s", [])) == (events, jobs), name


@pytest.mark.parametrize("option", ["--store-and-aggregate", "--store-and-forward"])
def test_whole_sums_in_switches_are_the_papers(option: str) -> None:
    words = ["run", "--model", "lenet", "--mechanism", "inagg+mcast", option, "--json"]
    plain, papers, runtime = (
        json.loads(CliRunner().invoke(main, [*words, *more]).output)["iteration_s"]
        for more in ([], ["--semantics", "papers"], ["--semantics", "runtime"])
    )
    assert plain == papers != runtime
