"""What sockets cannot do is one of netfold's errors; a defect of netfold's own stays what it is."""

from __future__ import annotations

import pytest

from hostlib.errors import RunError
from hostlib.fabric.socket_errors import socket_errors


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ValueError("NETFOLD_PATH=dpdk: it is udp or xdp"), RunError),
        (OSError("NETFOLD_PATH=xdp: this process lacks CAP_BPF"), RunError),
        (ValueError("slots must be a power of two"), ValueError),
    ],
    ids=str,
)
def test_the_line_is_kept(raised: Exception, seen: type[Exception]) -> None:
    with pytest.raises(seen) as said, socket_errors():
        raise raised
    assert type(said.value) is seen and str(said.value) == str(raised)
