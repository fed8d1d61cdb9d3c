"""Whatever is played ends, no sooner than links can carry it, and every byte that a host sends is received."""

from __future__ import annotations

import math
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import netfold
from hostlib.protocol.slots import slots_of_stream

EXAMPLES = int(os.environ.get("NETFOLD_PROPERTY_EXAMPLES", "40"))
BANDWIDTH_BITS_S = 10e9
# Of all but the last, no fabric sums or duplicates messages.
BETWEEN_HOSTS = ("ring", "ring:split=no", "tree", "tree:pieces=3", "halving-doubling", "butterfly")
WITH_SERVERS = ("ps", "ps:servers=3", "ps:servers=2:assign=even", "ps:servers=2:assign=pairs", "ps:colocated=yes")
CHUNKS = ("mcast", "ring+mcast")  # whose receivers ask for more
IN_FABRIC = ("inagg", "inagg+mcast", "inagg+mcast:via_server=yes", *CHUNKS)


@settings(max_examples=10 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_messages_end_and_their_bytes_arrive(data: st.DataObject) -> None:
    workers = data.draw(st.integers(2, 17), "workers")
    mechanism = data.draw(st.sampled_from(BETWEEN_HOSTS + WITH_SERVERS + IN_FABRIC), "mechanism")
    size = data.draw(st.one_of(st.integers(1, 64), st.integers(1, 300_000)), "size")
    racks = data.draw(st.integers(1, min(workers, 4)), "racks")
    found = netfold.predict(
        None,
        mechanism,
        workers,
        "10gbit",
        size=str(size),
        racks=racks,
        oversubscription=data.draw(st.sampled_from((1.0, 3.0)), "oversubscription") if racks > 1 else 1.0,
        latency=data.draw(st.sampled_from(("0us", "1us", "3ms")), "latency"),
        message=data.draw(st.sampled_from((None, "1000", "70kB")), "message"),
        jobs=data.draw(st.integers(1, 3), "jobs"),
        apart=data.draw(st.booleans(), "apart"),
        jitter=data.draw(st.sampled_from((0.0, 0.3)), "jitter"),
        semantics=data.draw(st.sampled_from(("runtime", "papers")), "semantics"),
    )
    assert 0 < found.iteration_s < math.inf and all(each > 0 for each in found.jobs_iteration_s)
    hosts = [each for name, each in found.bytes_per_link.items() if name.startswith(("worker", "server"))]
    assert all(
        each["sent"] + each["received"] >= size for name, each in found.bytes_per_link.items() if "worker" in name
    )
    busiest = max(max(each.values()) for each in hosts)
    # The last requests for more chunks leave when the last chunks are there.
    last = workers * size / (slots_of_stream(workers) // 2) if mechanism in CHUNKS else 0
    assert found.iteration_s >= (busiest - last) * 8 / BANDWIDTH_BITS_S * (1 - 1e-9)
    if mechanism not in IN_FABRIC:
        assert sum(each["sent"] for each in hosts) == sum(each["received"] for each in hosts)
