"""`hostlib profile`: a model's trace."""

from __future__ import annotations

from pathlib import Path

import click

from hostlib.errors import RunError


@click.command()
@click.option("--model", default="lenet", show_default=True, help="See `hostlib models`; or MODULE:FACTORY.")
@click.option("--input", "shape", metavar="CxHxW", help="Shape of one sample [default: what the model takes].")
@click.option("--batch", default=32, show_default=True, help="Samples per iteration.")
@click.option("--iterations", default=5, show_default=True, help="Times are their medians.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1, ...")
@click.option("--method", type=click.Choice(["hooks", "profiler"]), default="hooks", show_default=True)
@click.option(
    "--import",
    "source",
    type=click.Path(path_type=Path),
    help="Read a profile of torch.profiler (Chrome's format) instead.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Write the trace here [default: print it].")
def profile(
    model: str,
    shape: str | None,
    batch: int,
    iterations: int,
    device: str,
    method: str,
    source: Path | None,
    output: Path | None,
) -> None:
    """Record a model's trace: what `simulation run --trace` plays on other networks.

    \b
    Examples
        hostlib profile --model resnet18 --batch 8 --output resnet18.trace
        hostlib profile --model torchvision.models:vit_b_16 --input 3x224x224 --device cuda --output vit.trace
        hostlib profile --import profile.json --output mine.trace
    """
    from hostlib.traces.trace import as_text, write

    if source is not None:
        from hostlib.traces.kineto import import_profile

        trace = import_profile(source)
    else:
        from hostlib.models.inspection import input_of
        from hostlib.models.loading import load_model, parse_shape
        from hostlib.traces.recorder import profile as record

        asked = None if shape is None else parse_shape(shape)
        made = load_model(model, asked)
        trace = record(made, asked or input_of(made), batch, iterations, device, kineto=method == "profiler")
    if output is None:
        click.echo(as_text(trace), nl=False)
        return
    try:
        write(trace, output)
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror}") from None


PLACE = 50
COMMANDS = (profile,)
