"""`hostlib models`: which networks there are, and the layers of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from hostlib.models.zoo.catalogue import ENTRIES
from hostlib.system.command import Command, json_option
from hostlib.text.common_options import input_option
from hostlib.text.output import output

if TYPE_CHECKING:
    from hostlib.models.inspection import Inspected


@click.command(cls=Command)
@click.argument("model", required=False)
@input_option()
@json_option
def models(model: str | None, shape: tuple[int, ...] | None, as_json: bool) -> None:
    """List the models, or the layers of one: a model of the list, with options, or MODULE:FACTORY.

    No weights are allocated, so models of any size can be listed.

    \b
    Examples
        hostlib models
        hostlib models vgg19
        hostlib models resnet50:norm=group:classes=10 --input 3x32x32
        hostlib models my.models:network --json
    """
    from hostlib.models.loading import describe

    if model is None and shape is not None:
        raise click.UsageError("--input needs a MODEL")
    if model is None:
        _all(as_json)
        return
    from hostlib.models.inspection import load

    seen = load(model, shape)
    if as_json:
        click.echo(json.dumps({**_summary(seen), "layers": [asdict(layer) for layer in seen.layers]}, indent=2))
        return
    table = Table("", "layer", "kind", title_justify="left")
    for name in ("parameters", "output", "MFLOP"):
        table.add_column(name, justify="right")
    for layer in seen.layers:
        sizes = (f"{layer.params:,}", f"{layer.output:,}", f"{layer.flops / 1e6:,.1f}")
        table.add_row(str(layer.index), layer.name, layer.kind, *sizes)
    table.title = (
        f"{model}: {describe(seen.input)}, {seen.params:,} parameters, {seen.flops / 1e9:.2f} GFLOP per example"
    )
    _print(table)


def _all(as_json: bool) -> None:
    from hostlib.models.inspection import load
    from hostlib.models.loading import describe
    from hostlib.models.zoo import options_of

    found = {name: load(name) for name in ENTRIES}
    if as_json:
        described = [
            {**_summary(seen), "layers": len(seen.layers), "options": list(options_of(name)), "source": entry.source}
            for (name, entry), seen in zip(ENTRIES.items(), found.values(), strict=True)
        ]
        click.echo(json.dumps(described, indent=2))
        return
    table = Table("model", "input", "classes", "layers", "parameters", "GFLOP per example", "described by")
    for column in table.columns[2:6]:
        column.justify = "right"
    for name, seen in found.items():
        sizes = (str(seen.classes), str(len(seen.layers)), f"{seen.params:,}", f"{seen.flops / 1e9:.2f}")
        table.add_row(name, describe(seen.input), *sizes, ENTRIES[name].source)
    _print(table)


def _summary(seen: Inspected) -> dict[str, Any]:
    return {
        "name": seen.name,
        "input": list(seen.input),
        "classes": seen.classes,
        "params": seen.params,
        "flops": seen.flops,
    }


def _print(table: Table) -> None:
    output().print(table)


PLACE = 40
COMMANDS = (models,)
