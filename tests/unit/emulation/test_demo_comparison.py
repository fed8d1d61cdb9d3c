"""What the demo says at its end is computed from its runs."""

from __future__ import annotations

from typing import Any

import pytest

from emulation.demo.comparison import about_weights, compare


def run(milliseconds: float, sent: int, digest: str, accuracy: float = 0.98) -> dict[str, Any]:
    return {
        "iteration_ms_median": milliseconds,
        "link_bytes": {"rank0": {"sent": sent, "received": sent}, "rank1": {"sent": sent, "received": sent}},
        "test_accuracy": accuracy,
        "weights_sha256": [digest, digest],
    }


def test_the_switch_is_compared_with_the_ring_whatever_else_ran() -> None:
    runs = {"gloo": run(30, 60, "a"), "inagg+mcast": run(10, 35, "b"), "ring": run(19, 50, "c")}
    (found,) = compare(runs)
    assert (found.hosts, found.speedup, found.fewer_bytes) == ("ring", 1.9, pytest.approx(0.3))
    assert found.sentence == (
        "the switch (inagg+mcast): 1.9 times faster than the ring here, 30 % fewer bytes on the wire, "
        "same accuracy (0.9800)"
    )
    assert found.as_json()["sentence"] == found.sentence


def test_a_slower_switch_and_another_accuracy_are_said_too() -> None:
    (found,) = compare({"inagg+mcast": run(20, 66, "a", 0.97), "gloo": run(10, 60, "b")})
    assert found.sentence == (
        "the switch (inagg+mcast): 2.0 times slower than gloo here, 10 % more bytes on the wire, "
        "accuracy 0.9700 instead of 0.9800"
    )
    (equal,) = compare({"inagg+mcast": run(10.1, 30, "a"), "ring": run(10, 30, "b")})
    assert "as fast as the ring here, 0 % fewer bytes" in equal.sentence


def test_without_a_switch_or_without_hosts_nothing_is_compared() -> None:
    assert compare({"ring": run(1, 1, "a"), "gloo": run(1, 1, "b")}) == []
    assert compare({"inagg+mcast": run(1, 1, "a")}) == []


@pytest.mark.parametrize(
    ("digests", "says", "not_said"),
    [
        ({"inagg+mcast": "a", "ring": "b", "gloo": "c"}, ("integers", "Under ring and gloo hosts add floats"), ()),
        ({"inagg+mcast": "a", "ring": "b"}, ("Under inagg+mcast the switch adds", "Under ring hosts"), ()),
        ({"mcast": "a", "ring": "b"}, ("Under mcast and ring hosts add floats",), ("integers",)),
        ({"ring": "a", "gloo": "a"}, ("the same under ring and gloo, bit for bit",), ("differ",)),
    ],
)
def test_different_weights_are_explained(
    digests: dict[str, str], says: tuple[str, ...], not_said: tuple[str, ...]
) -> None:
    text = about_weights({name: run(1, 1, digest) for name, digest in digests.items()})
    assert all(each in text for each in says) and not any(each in text for each in not_said)


def test_a_single_run_needs_no_explanation() -> None:
    assert about_weights({"ring": run(1, 1, "a")}) == ""
