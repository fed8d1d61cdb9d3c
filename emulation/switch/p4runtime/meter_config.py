"""Meter configurations and counters per colour (section 9.4): validation, and conversion for the data plane."""

from __future__ import annotations

from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.switch.dataplane import Marked
from emulation.switch.p4runtime.status import invalid


def rates(what: str, spec: Any, config: p4runtime_pb2.MeterConfig | None) -> list[int] | None:
    """(cir, cburst, pir, pburst, eburst) in bytes or packets (per second), as in P4Info's `spec`; None: all is green.

    Raises:
        RequestError: INVALID_ARGUMENT, an impossible configuration.
    """
    if config is None:
        return None
    values = [config.cir, config.cburst, config.pir, config.pburst, config.eburst]
    if min(values) < 0:
        raise invalid(f"{what}: rates and bursts are 0 or more")
    # Older P4Runtime packages have no meter types: all meters have two rates there.
    kind = getattr(spec, "type", 0)
    single = kind != 0
    if single and (config.pir, config.pburst) != (config.cir, config.cburst):
        raise invalid(f"{what}: a meter of a single rate has pir = cir and pburst = cburst")
    if config.eburst and not (single and kind == p4info_pb2.MeterSpec.SINGLE_RATE_THREE_COLOR):
        raise invalid(f"{what}: eburst is for meters of a single rate and three colours; it is 0")
    if config.pir < config.cir:
        raise invalid(f"{what}: the peak rate ({config.pir}) is less than the committed one ({config.cir})")
    return values


def counted(marked: Marked) -> p4runtime_pb2.MeterCounterData:
    """A meter's counters per colour, as a message."""
    green, yellow, red = (p4runtime_pb2.CounterData(packet_count=n, byte_count=size) for n, size in marked)
    return p4runtime_pb2.MeterCounterData(green=green, yellow=yellow, red=red)


def marked(data: p4runtime_pb2.MeterCounterData) -> Marked:
    """The inverse of `counted`."""
    return [(each.packet_count, each.byte_count) for each in (data.green, data.yellow, data.red)]
