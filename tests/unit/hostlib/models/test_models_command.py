"""`hostlib models`, and `hostlib profile` with a network of the zoo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hostlib.cli import main
from hostlib.errors import HostlibError
from hostlib.models.zoo import NAMES
from hostlib.traces.trace import read


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["models", *words], catch_exceptions=True)


def test_all_are_listed() -> None:
    printed = json.loads(run("--json").output)
    assert [row["name"] for row in printed] == list(NAMES)
    vgg = next(row for row in printed if row["name"] == "vgg19")
    assert (vgg["input"], vgg["classes"], vgg["layers"], vgg["params"]) == ([3, 224, 224], 1001, 24, 143671337)
    assert vgg["options"] == ["classes", "channels", "pixels", "norm", "variant"] and "RALP" in vgg["source"]


def test_one_is_shown_layer_by_layer() -> None:
    printed = json.loads(run("cifar10_quick", "--json").output)
    assert printed["params"] == sum(layer["params"] for layer in printed["layers"]) == 145_578
    assert printed["layers"][-1]["matrix"] == [10, 64]
    lines = run("cifar10_quick").output.splitlines()
    assert "145,578 parameters" in lines[0]
    assert sum("│" in line for line in lines) == 8


def test_its_input_can_be_chosen() -> None:
    printed = json.loads(run("resnet18:classes=10", "--input", "1x32x32", "--json").output)
    assert (printed["input"], printed["classes"], printed["layers"][0]["params"]) == ([1, 32, 32], 10, 64 * 49 + 128)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("vgg12",), "unknown model 'vgg12'"),
        (("vgg19", "--input", "3x224"), "vgg19 takes images, such as 3x224x224, not 3x224"),
        (("vgg19", "--input", "3x224x200"), "vgg19 takes square images, not 3x224x200"),
        (("nowhere:net",), "nowhere:net does not build a model: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_shown_is_refused(words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert isinstance(done.exception, HostlibError)
    assert str(done.exception).startswith(says)


def test_an_input_is_a_shape_or_short_for_one() -> None:
    assert "'big' is not a shape such as 3x224x224, 224 for short" in run("vgg19", "--input", "big").stderr
    short, whole = (run("vgg16", "--input", each, "--json").output for each in ("64", "3x64x64"))
    assert json.loads(short) == json.loads(whole)
    tokens = json.loads(run("gpt2:layers=1:width=16:heads=2:classes=20", "--input", "8", "--json").output)
    assert tokens["input"] == [8]


def test_a_network_of_the_zoo_can_be_profiled(tmp_path: Path) -> None:
    options = ["--model", "gpt2:context=8:layers=1:width=16:heads=2:classes=20", "--batch", "2", "--iterations", "1"]
    CliRunner().invoke(main, ["profile", *options, "--output", str(tmp_path / "trace")], catch_exceptions=False)
    sizes = sum(parameter.bytes for parameter in read(tmp_path / "trace").parameters)
    assert sizes == 4 * (20 * 16 + 8 * 16 + 17 * 48 + 17 * 16 + 17 * 64 + 65 * 16 + 96)
