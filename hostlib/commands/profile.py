"""`hostlib profile`: a model's trace."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hostlib.errors import RunError
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.common_options import input_option


@click.command(cls=Command)
@click.option(
    "--model", type=types.MODEL, default="lenet", show_default=True, help="Model to record; see `netfold models`."
)
@input_option()
@click.option("--batch", type=types.N, default=32, show_default=True, help="Examples per iteration.")
@click.option("--iterations", type=types.N, default=5, show_default=True, help="Iterations to time; medians count.")
@click.option("--device", type=types.DEVICE, default="cpu", show_default=True, help="Device to run on.")
@click.option(
    "--method",
    type=click.Choice(["hooks", "profiler"]),
    default="hooks",
    show_default=True,
    help="Time layers by PyTorch hooks or by torch.profiler.",
)
@click.option(
    "--import", "source", type=types.ANY_FILE, help="Convert this file of torch.profiler (Chrome's format) instead."
)
@click.option("--output", type=types.ANY_FILE, help="Write the trace to this file [default: print it].")
@json_option
def profile(
    model: str,
    shape: tuple[int, ...] | None,
    batch: int,
    iterations: int,
    device: str,
    method: str,
    source: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Record a trace of a model, to be simulated on other networks.

    \b
    Examples
        hostlib profile --model resnet18 --batch 8 --output resnet18.trace
        hostlib profile --model torchvision.models:vit_b_16 --input 3x224x224 --device cuda --output vit.trace
        hostlib profile --import profile.json --output mine.trace
    """
    from hostlib.traces.trace import as_json_object, as_text, write

    if source is not None:
        from hostlib.traces.kineto import import_profile

        trace = import_profile(source)
    else:
        from hostlib.models.inspection import input_of
        from hostlib.models.loading import image_shape, load_model
        from hostlib.traces.recorder import profile as record

        asked = image_shape(model, shape)
        made = load_model(model, asked)
        trace = record(made, asked or input_of(made), batch, iterations, device, kineto=method == "profiler")
    if output is not None:
        try:
            write(trace, output)
        except OSError as error:
            raise RunError(f"{output} cannot be written: {error.strerror}") from None
        click.echo(
            f"the computing times are those of {device} here; for another device record there (--device cuda), or scale "
            "them with `netfold simulate trace edit --scale-compute`",
            err=True,
        )
    if as_json:
        click.echo(json.dumps(as_json_object(trace)))
    elif output is None:
        click.echo(as_text(trace), nl=False)


PLACE = 50
COMMANDS = (profile,)
