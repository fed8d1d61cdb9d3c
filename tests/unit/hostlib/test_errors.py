"""Errors keep their type and fields on the way to another process, and through torch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from hostlib.errors import FabricError, HostlibError, MissingRankError, RunError, UnknownNameError, from_json
from hostlib.transport.refusals import quoted, refuse, remember

MISSING = MissingRankError([2, 5], 3.0, first_server=5)


@pytest.mark.parametrize(
    "error", [MISSING, UnknownNameError("model", "vgg", ["lenet"]), FabricError("no answer"), HostlibError("x")]
)
def test_an_error_is_the_same_in_another_process(error: HostlibError) -> None:
    again = from_json(json.loads(json.dumps(error.as_json())))
    assert (type(again), str(again)) == (type(error), str(error))
    assert {name: getattr(again, name) for name in error.FIELDS} == {n: getattr(error, n) for n in error.FIELDS}


def test_other_words_do_not_change_what_it_is() -> None:
    again = MISSING.restated(f"rank 0: {MISSING}")
    assert type(again) is MissingRankError
    assert (again.ranks, str(again)) == ([2, 5], f"rank 0: {MISSING}")


def test_one_that_is_not_known_here_is_its_nearest_base() -> None:
    record = {"kinds": ["OfAPlugin", "RunError", "HostlibError"], "line": "no", "fields": {}}
    assert type(from_json(record)) is RunError


@pytest.mark.parametrize(
    "record",
    [
        None,
        "nonsense",
        [],
        {"kinds": ["MissingRankError"], "line": "no", "fields": {}},
        {"kinds": ["MissingRankError"], "line": "no", "fields": {"ranks": ["2; rm"]}},
        {"kinds": ["UnknownNameError"], "line": "no", "fields": {"kind": {}, "name": "", "legal": []}},
    ],
)
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match="not a record of an error"):
        from_json(record)


def test_nothing_but_an_error_of_ours_is_made() -> None:
    """Neither another class by its name, nor an attribute that the type does not carry."""
    record = {"kinds": ["SystemExit", "builtins.eval"], "line": "no", "fields": {"args": [1], "__class__": "int"}}
    made = from_json(record)
    assert (type(made), made.args, vars(made)) == (HostlibError, ("no",), {})


def test_an_error_comes_through_torch_whole() -> None:
    """A future that follows another one holds only the text of its error."""
    first: torch.futures.Future[int] = torch.futures.Future()
    second = first.then(lambda done: done.value())
    refuse(first, MISSING)
    refuse(first, RunError("a later piece"))
    with pytest.raises(RuntimeError) as raised:
        second.wait()
    assert not isinstance(raised.value, HostlibError)
    found = quoted(str(raised.value))
    assert isinstance(found, MissingRankError) and found.ranks == [2, 5]
    assert quoted("Connection closed by peer") is None


def test_what_is_remembered_holds_no_tensors() -> None:
    def fail() -> None:
        held = torch.zeros(1)
        raise FabricError(f"with {held.numel()} value")

    with pytest.raises(FabricError) as raised:
        fail()
    remember(raised.value)
    found = quoted("FabricError: with 1 value")
    assert found is not None and found.__traceback__ is None
