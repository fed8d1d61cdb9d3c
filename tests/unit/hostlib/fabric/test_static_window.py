"""NETFOLD_WINDOW, and --window: what is legal, and what is refused before anything starts."""

from __future__ import annotations

import pytest

from hostlib.bench.allreduce import BenchOptions
from hostlib.errors import HostlibError, RunError
from hostlib.fabric.static_window import static_window
from hostlib.train.options import TrainOptions


@pytest.mark.parametrize(("text", "packets"), [(None, 0), ("1", 1), ("32", 32), ("064", 64)])
def test_it_is_a_number_of_packets(text: str | None, packets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETFOLD_WINDOW", raising=False)
    if text is not None:
        monkeypatch.setenv("NETFOLD_WINDOW", text)
    assert static_window(64) == packets


@pytest.mark.parametrize("text", ["", "0", "-1", "+1", "65", "1.5", "1_0", " 1", "two", "\u0663", "9" * 5000])
def test_anything_else_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_WINDOW", text)
    with pytest.raises(RunError) as refused:
        static_window(64)
    assert str(refused.value) == (
        f"NETFOLD_WINDOW must be a whole number from 1 to 64, the slots of a lane, not {text!r}"
    )


def test_commands_refuse_it_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any mechanism: another one may follow in the same shell."""
    monkeypatch.setenv("NETFOLD_WINDOW", "100")
    BenchOptions(("ring",), (1024,))
    TrainOptions("ring")
    with pytest.raises(RunError, match="NETFOLD_WINDOW must be a whole number from 1 to 64"):
        TrainOptions("ring", slots=64)
    monkeypatch.setenv("NETFOLD_WINDOW", "200")
    with pytest.raises(RunError, match="NETFOLD_WINDOW must be a whole number from 1 to 128"):
        BenchOptions(("ring",), (1024,))


@pytest.mark.parametrize(
    ("mechanism", "collective", "taken"),
    [
        ("inagg+mcast", "all_reduce", True),
        ("inagg+mcast:same_host=shm", "all_reduce", True),
        ("inagg", "all_reduce", True),
        ("inagg+mcast", "reduce_scatter", True),
        ("inagg+mcast", "all_gather", False),
        ("ring", "all_reduce", False),
        ("ring+mcast", "all_reduce", False),
        ("gloo", "all_reduce", False),
    ],
)
def test_the_benchs_option_is_of_sums_by_the_switch(mechanism: str, collective: str, taken: bool) -> None:
    def asked() -> BenchOptions:
        return BenchOptions((mechanism,), (1024,), collectives=(collective,), window=4)

    if taken:
        assert asked().window == 4
    else:
        with pytest.raises(HostlibError, match="--window is of all-reduces and reduce-scatters that the switch sums"):
            asked()
