"""What loss leaves is measured: a little of loss.py."""

from __future__ import annotations

from hostlib.transport.waits import PATIENCE_S
from tests.chaos.loss import lines, measure, table


def test_sums_are_the_same_at_any_loss_and_no_silence_is_long() -> None:
    with lines(2, (0.0, 0.2)) as (whole, lossy):
        measure([whole, lossy], 0.5)
        assert lossy.sent > 1.2 > whole.sent >= 1
        assert whole.goodput_gbit_s > lossy.goodput_gbit_s > 0
        assert 0 < lossy.silent_s < PATIENCE_S / 2
        assert table([whole, lossy]).row_count == 2
