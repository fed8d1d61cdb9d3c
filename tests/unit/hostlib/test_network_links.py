"""Rates of emulated links that the kernel cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from hostlib.errors import HostlibError
from hostlib.system.network_links import shape


@pytest.mark.parametrize(
    ("rate_bits_s", "says"),
    [
        (3.0, "a rate of 3.0 bit/s is less than a byte per second"),
        (
            40e9,
            "a link of 40 Gbit/s cannot be emulated: at most 34.36 Gbit/s are legal; a larger --dilation makes links slower",
        ),
    ],
)
def test_a_rate_that_the_kernel_cannot_have_is_refused(rate_bits_s: float, says: str) -> None:
    kernel: Any = None  # is not asked
    with pytest.raises(HostlibError) as caught:
        shape(kernel, "h1", rate_bits_s)
    assert str(caught.value) == says
