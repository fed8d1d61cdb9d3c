"""What `import netfold` promises."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hostlib.errors
import netfold
from simulation.cli import main
from simulation.commands.run import run_


def functions() -> Iterator[tuple[str, Any]]:
    """Public functions, and public methods of public classes of netfold's own."""
    for name in netfold.__all__:
        found = getattr(netfold, name)
        if not isinstance(found, type):
            yield name, found
        elif found.__module__.startswith("netfold."):
            for inner, method in vars(found).items():
                if inspect.isfunction(method) and not inner.startswith("_"):
                    yield f"{name}.{inner}", method


@pytest.mark.parametrize("name", netfold.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(netfold, name)
    assert found is getattr(netfold, name)
    assert inspect.getdoc(found) and not inspect.getdoc(found).startswith(f"{name}(")
    assert name in dir(netfold)


def test_a_type_checker_sees_what_python_loads() -> None:
    tree = ast.parse(Path(netfold.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: getattr(importlib.import_module(node.module or ""), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: getattr(netfold, name) for name in netfold.__all__}


def test_other_names_are_refused_as_pythons_are() -> None:
    with pytest.raises(AttributeError, match=r"module 'netfold' has no attribute 'nothing'"):
        netfold.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(("name", "function"), list(functions()), ids=[name for name, _ in functions()])
def test_functions_have_types_and_sentences(name: str, function: Any) -> None:
    signature = inspect.signature(function)
    assert signature.return_annotation is not signature.empty
    for parameter in signature.parameters.values():
        assert parameter.name == "self" or parameter.annotation is not parameter.empty, f"{name}: {parameter}"
    assert (inspect.getdoc(function) or "").split("\n\n")[0].endswith((".", ":"))


def test_all_errors_of_the_host_side_are_there() -> None:
    kinds = {
        name
        for name, kind in vars(hostlib.errors).items()
        if isinstance(kind, type) and issubclass(kind, hostlib.errors.HostlibError)
    }
    assert len(kinds) > 10 and kinds <= set(netfold.__all__)


def test_mechanisms_are_found_and_checked() -> None:
    for name, mechanism in netfold.mechanisms().items():
        assert netfold.find(name) == mechanism
        if mechanism.build is not None:
            netfold.check(mechanism.schedule(4))
    with pytest.raises(netfold.UnknownNameError, match="unknown mechanism 'rung'; legal are"):
        netfold.find("rung")


def printed(*words: str) -> dict[str, Any]:
    """What `simulation run` prints, but for the time that it took."""
    done = CliRunner().invoke(main, ["run", *words, "--json"])
    assert done.exit_code == 0, done.output
    return without_wall(json.loads(done.output))


def without_wall(result: dict[str, Any]) -> dict[str, Any]:
    assert result.pop("wall_s") > 0
    return result


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (
            "--model vgg16 --mechanism ring --workers 8 --bandwidth 10gbit",
            {"model": "vgg16", "mechanism": "ring", "workers": 8, "bandwidth": "10gbit"},
        ),
        (
            "--model alexnet --mechanism hybcomm/ring --batch 16 --latency 5us --straggler 1=2.5",
            {"model": "alexnet", "mechanism": "hybcomm/ring", "batch": 16, "latency": "5us", "stragglers": {1: 2.5}},
        ),
        (
            "--size 4MiB --mechanism inagg+mcast --jobs 2 --racks 2 --workers 4 --iterations 2",
            {"model": None, "size": "4MiB", "mechanism": "inagg+mcast", "jobs": 2, "racks": 2, "iterations": 2},
        ),
    ],
)
def test_predict_has_the_numbers_of_the_command(words: str, arguments: dict[str, Any]) -> None:
    assert without_wall(netfold.predict(**arguments).as_json()) == printed(*words.split())


def test_predict_has_the_options_and_defaults_of_the_command() -> None:
    of_the_command = {option.name: option for option in run_.params}
    for name in ("experiment", "predictor", "as_json"):
        del of_the_command[name]
    called = {"mechanisms": "mechanism", "trace_file": "trace"}
    parameters = inspect.signature(netfold.predict).parameters
    assert {called.get(name, name) for name in of_the_command} == parameters.keys()
    context = run_.make_context("run", [])
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty and name not in ("trace", "stragglers"):
            assert context.params[name] == parameter.default, name


@pytest.mark.parametrize(
    ("arguments", "kind", "line"),
    [
        ({"model": "vgg17", "mechanism": "ring"}, "SimulationError", "vgg17"),
        ({"model": "vgg16", "mechanism": "rung"}, "UnknownNameError", "unknown mechanism 'rung'"),
        ({"model": "vgg16", "mechanism": "ring", "bandwidth": "fast"}, "QuantityError", "bandwidth 'fast'"),
        ({"model": "vgg16", "mechanism": "ring", "size": "1MiB"}, "SimulationError", "exclude each other"),
        ({"model": "vgg16", "mechanism": "ring", "jobs": 0}, "SimulationError", "--jobs must be at least 1"),
    ],
)
def test_what_cannot_be_predicted_is_refused(arguments: dict[str, Any], kind: str, line: str) -> None:
    with pytest.raises(getattr(netfold, kind), match=line):
        netfold.predict(**arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "line"),
    [
        ({"mechanism": "rung"}, "UnknownNameError", "unknown mechanism 'rung'"),
        ({"mechanism": "ring", "deadline_s": 0}, "RunError", "deadline_s must be above 0, not 0"),
        ({"deadline_s": float("inf")}, "RunError", "deadline_s must be at most 1000000 s, not inf"),
        ({"deadline_s": 1e300}, "RunError", r"deadline_s must be at most 1000000 s, not 1e\+300"),
        ({"deadline_s": float("nan")}, "RunError", "deadline_s must be above 0, not nan"),
        ({"deadline_s": "x"}, "RunError", "deadline_s must be a number of seconds, not 'x'"),
        ({"lanes": 0}, "RunError", "lanes must be above 0, not 0"),
        ({"lanes": 10**9}, "RunError", "lanes must be at most 4, the pools of slots of a job, not 1000000000"),
        ({"lanes": "2"}, "RunError", "lanes must be a whole number, not '2'"),
        ({"lanes": 1.5}, "RunError", "lanes must be a whole number, not 1.5"),
        ({"mechanism": None}, "RunError", "mechanism must be a text, not None"),
        ({"mechanism": 3}, "RunError", "mechanism must be a text, not 3"),
        ({"controller": None}, "RunError", "controller must be a text, not None"),
        ({"fallback": None}, "RunError", "fallback must be a text, not None"),
        ({"transport": None}, "UnknownNameError", "unknown transport None"),
        ({"address": None}, "RunError", "address must be a text, not None"),
        ({"address": "localhost"}, "RunError", "address must be an IPv4 address, as 127.0.0.1, not 'localhost'"),
        ({"mechanism": "ring", "fallback": "inagg"}, "UnknownNameError", "unknown fallback 'inagg'"),
        ({"mechanism": "ring", "transport": "pigeon"}, "UnknownNameError", "unknown transport 'pigeon'"),
        ({"mechanism": "mpi"}, "HostlibError", "mpi is a library's own collective"),
        ({"mechanism": "ring"}, "RunError", "RANK is not set: run this under torchrun"),
    ],
)
def test_a_session_that_cannot_be_is_refused_before_ranks_meet(
    arguments: dict[str, Any], kind: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(getattr(netfold, kind), match=line), netfold.session(**arguments):
        pass
