"""The report's answer, in sentences."""

from __future__ import annotations

from emulation.report import axis_units
from emulation.report.result_files import Setting
from emulation.report.summary import Ranking, Summary
from simulation.experiments.verdict import compared


def answer(summary: Summary) -> list[str]:
    """Sentences for each model, then what they leave out."""
    return [_of_model(summary, model) for model in summary.models] + reservations(summary)


def reservations(summary: Summary) -> list[str]:
    """Caveats that readers must know; empty if there are none."""
    sentences = []
    if not summary.cells:
        sentences.append("Nothing has been measured yet.")
    if not summary.experiment.finished:
        sentences.append("The experiment has not finished: this is what there is so far.")
    if summary.invalid:
        count, total = len(summary.invalid), len(summary.cells)
        verb = "is" if count == 1 else "are"
        sentences.append(
            f"{count:,} of {axis_units.counted(total, 'cell')} {verb} invalid, because the emulation itself was the bottleneck, "
            f"and {verb} left out of all comparisons."
        )
    if missing := summary.combinations - len(summary.cells):
        sentences.append(
            f"Of the {summary.combinations:,} combinations of these models, mechanisms and settings, {missing:,} "
            f"{'was' if missing == 1 else 'were'} not measured."
        )
    return sentences


def setting_text(setting: Setting, summary: Summary) -> str:
    """`25 Gbit/s with 8 workers`; with jobs, loss, slots and delay if the experiment varies them."""
    text = f"{axis_units.rate(setting.bandwidth_bits_s)} with {axis_units.counted(setting.workers, 'worker')}"
    if setting.jobs > 1 or "jobs" in summary.varied():
        text += f", {axis_units.counted(setting.jobs, 'job')} at once"
    if setting.loss > 0 or "loss" in summary.varied():
        text += f", {axis_units.percent(setting.loss)} loss"
    if "slots" in summary.varied():
        text += f", {axis_units.counted(setting.slots, 'slot')}"
    if setting.delay_ns > 0:
        text += f", {axis_units.delay(setting.delay_ns)} per link"
    return text


def _of_model(summary: Summary, model: str) -> str:
    rankings = summary.of(model)
    if len(rankings) == 1:
        (only,) = rankings
        text = f"For {model} at {setting_text(only.setting, summary)} {_verdict(only)}"
        if only.unknown_hosts and only.best_host is not None:
            verbs = ("a host mechanism", "it has") if len(only.unknown_hosts) == 1 else ("host mechanisms", "they have")
            text += f" {_joined(only.unknown_hosts)}, {verbs[0]} too, might be faster: {verbs[1]} no valid measurement here."
        return text
    both = [ranking for ranking in rankings if ranking.speedup is not None]
    if not both:
        return f"For {model} no setting has both a valid host mechanism and a valid one that uses the fabric."
    # If a host mechanism is unknown, the best of the others says little.
    full = [ranking for ranking in both if not ranking.unknown_hosts] or both
    least, most = (pick(full, key=lambda r: r.speedup or 0) for pick in (min, max))
    better = sum((ranking.speedup or 0) > 1 and not ranking.is_close for ranking in full)
    text = f"For {model} help from the fabric pays in {better} of {axis_units.counted(len(full), 'setting')}"
    if full is both and any(ranking.unknown_hosts for ranking in both):
        text += ", though in each a host mechanism that might be faster has no valid measurement"
    text += f". It fares best at {setting_text(most.setting, summary)}: there {_verdict(most)}"
    if most is not least:
        text += f" It fares worst at {setting_text(least.setting, summary)}: there {_verdict(least)}"
    if others := len(rankings) - len(full):
        verb = "is" if others == 1 else "are"
        text += (
            f" {axis_units.counted(others, 'more setting')} {verb} not counted: a host mechanism, or all that use the "
            "fabric, have no valid measurement there."
        )
    return text


def _joined(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _verdict(ranking: Ranking) -> str:
    host, fabric, speedup = ranking.best_host, ranking.best_fabric, ranking.speedup
    if host is not None and fabric is not None and speedup is not None:
        took = f"({axis_units.milliseconds(fabric.iteration_ms or 0)} against {axis_units.milliseconds(host.iteration_ms or 0)})"
        unresolved = "differ by less than their measurements do" if ranking.is_close else ""
        return compared(fabric.mechanism, host.mechanism, speedup, unresolved=unresolved, took=took) + "."
    only = host or fabric
    if only is None:
        return "nothing valid has been measured."
    lacks = "host mechanism" if host is None else "mechanism that uses the fabric"
    return (
        f"{only.mechanism} is the fastest ({axis_units.milliseconds(only.iteration_ms or 0)}), but no {lacks} has a valid "
        "measurement to compare it with."
    )
