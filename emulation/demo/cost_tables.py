"""The demo's result as a person reads it."""

from __future__ import annotations

from rich.table import Table

from emulation.demo.comparison import about_weights, compare
from emulation.demo.training_demo import DemoResult
from emulation.switch.conformance.suite import ConformanceReport
from hostlib.text.output import output


def print_demo(result: DemoResult) -> None:
    """Tables of mechanisms, links and switch counters, and what they come to in sentences, on standard output."""
    console = output()
    console.print(_mechanisms(result), _links(result), _switch(result))
    for line in (*(each.sentence for each in compare(result.runs)), about_weights(result.runs)):
        if line:
            console.print(line, soft_wrap=True)


def _mechanisms(result: DemoResult) -> Table:
    table = Table("mechanism", title="the same model, the same seeds", title_justify="left")
    for heading in ("steps", "iteration (median)", "test accuracy", "retransmits"):
        table.add_column(heading, justify="right")
    table.add_column("weights")
    for name, run in result.runs.items():
        resent = sum(engine["retransmits"] for engine in run["engine"] if engine)
        same = len(set(run["weights_sha256"])) == 1
        table.add_row(
            name,
            str(run["steps"]),
            f"{run['iteration_ms_median']:.1f} ms",
            f"{run['test_accuracy']:.4f}",
            f"{resent:,}" if any(run["engine"]) else "-",
            f"{run['weights_sha256'][0][:12]} on all ranks" if same else "[red]differ[/red]",
        )
    return table


def _links(result: DemoResult) -> Table:
    table = Table("link", title="payload bytes on each link (sent / received by the worker)", title_justify="left")
    for name in result.runs:
        table.add_column(name, justify="right")
    for rank in next(iter(result.runs.values()))["link_bytes"]:
        cells = []
        for run in result.runs.values():
            link = run["link_bytes"][rank]
            cells.append(f"{link['sent'] / 1e6:.2f} / {link['received'] / 1e6:.2f} MB")
        table.add_row(rank, *cells)
    return table


def _switch(result: DemoResult) -> Table:
    switch = result.switch
    table = Table("switch counter", title=f"{switch['kind']} switch, {switch['program']}", title_justify="left")
    table.add_column("packets", justify="right")
    table.add_row("slots completed", f"{switch['slots_completed']:,}")
    table.add_row("predicted (steps x buckets x chunks)", f"{result.predicted_slots:,}")
    table.add_row("packets in", f"{switch['packets_in']:,}")
    table.add_row("replicas out", f"{switch['replicas_out']:,}")
    for reason, packets in switch["drops"].items():
        table.add_row(f"dropped: {reason}", f"{packets:,}")
    return table


def print_conformance(report: ConformanceReport) -> None:
    """What did not pass, and the sums."""
    console = output()
    for title, found in (("unsupported", report.unsupported), ("failed", report.failed)):
        if found:
            table = Table(title, "why", title_justify="left")
            for name, why in sorted(found.items()):
                table.add_row(name, why)
            console.print(table)
    console.print(f"{len(report.passed)} passed, {len(report.unsupported)} unsupported, {len(report.failed)} failed")
