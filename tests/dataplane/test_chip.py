"""What only a chip has: pipes with registers of their own, and a port that brings frames back. On its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from emulation.tofino.chip_memory import PIPES, recirculating
from tests.dataplane.packets import SERVER, Bench, packet, share, vector
from tests.dataplane.target import Model, absent
from tests.dataplane.test_contributions import result

pytestmark = [
    pytest.mark.tofino,
    pytest.mark.skipif(absent("tofino") is not None, reason=str(absent("tofino"))),
]
PORTS_OF_A_PIPE = 128


@pytest.fixture
def chip(request: pytest.FixtureRequest) -> Iterator[Bench]:
    model = Model(request.param)
    yield Bench(model)
    model.close()


@pytest.mark.parametrize("chip", [32], indirect=True)
@pytest.mark.parametrize(("port", "results"), [(3, 2), (PORTS_OF_A_PIPE + 3, 0)])
def test_ranks_meet_in_one_pipe_only(chip: Bench, port: int, results: int) -> None:
    """Each pipe has registers of its own: whoever comes in by another pipe's port adds to other sums."""
    assert isinstance(chip.target, Model)
    job = share(2)
    first, second = job.members[0], replace(job.members[1], port=port)
    job = replace(job, members=(first, second))
    chip.target.harness.run([f"expect {port}"])
    chip.install(job)
    left = [chip.target.send(each.port, packet(job, each, vector(32, 0)).frame()) for each in job.members]
    assert [len(frames) for frames in left] == [0, results]


@pytest.mark.parametrize("chip", [64], indirect=True)
def test_only_what_carries_stored_values_loads_the_port_that_recirculates(chip: Bench) -> None:
    """Without that port such frames are lost, and no others: of n contributions to a slot, one."""
    assert isinstance(chip.target, Model)
    job, chunks = share(2), share(2, first_slot=256, above=SERVER, policy="chunk")
    chip.install_entities([e for each in (job, chunks) for e in chip.target.names.job([each])])
    chip.target.harness.write([replace(recirculating(pipe), value=0) for pipe in PIPES])
    first, second = job.members
    vectors = [vector(64, rank) for rank in range(2)]
    made = [packet(job, member, values) for member, values in zip(job.members, vectors, strict=True)]
    chip.expect(first.port, made[0], [], "absorbed")
    chip.expect(second.port, made[1], [], "completed")
    assert len(chip.target.send(SERVER.port, packet(chunks, SERVER, vectors[0]).frame())) == len(chunks.members)
    chip.target.harness.write([recirculating(pipe) for pipe in PIPES])
    chip.expect(second.port, made[1], [result(made[1], second, vectors)], "answered")
