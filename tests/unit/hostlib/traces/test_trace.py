"""Traces: what is written is read again, what is malformed is named, what is edited is what was asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostlib.errors import HostlibError
from hostlib.traces.trace import Event, Layer, Parameter, Trace, TraceError, read, synthesise, write
from simulation.models.architectures import BUILDERS, build
from simulation.models.synthetic_trace import model_trace
from simulation.simulator.workload import of_trace

GOOD = """\
# a comment
[layers]
layer,forward_s,backward_s
conv1,0.5,1.5
fc2,0.25,0.75
[parameters]
parameter,bytes,layer,trained
conv1/weights,100,conv1,yes
conv1/moving_mean,8,conv1,no
fc2/weights,200,fc2,yes
[events]
time_s,parameter,bytes,source,destination
0,fc2/weights,200,worker0,server0
1.5,conv1/weights,100,worker0,server0
0,conv1/weights,100,server0,worker0
0,fc2/weights,200,server0,worker0
"""


def put(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.trace"
    path.write_text(text)
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    trace = read(put(tmp_path, GOOD))
    assert trace.layers[1] == Layer("fc2", 250_000_000, 750_000_000)
    assert trace.aggregation("worker0")[1] == Event(1_500_000_000, "conv1/weights", 100, "worker0", "server0")
    assert (trace.lead_ns, trace.bytes, len(trace.distribution)) == (750_000_000, 300, 2)
    workload = of_trace(trace)
    assert [t.turn for t in workload.tensors] == [0, 2]  # moving averages are numbered, but not sent
    assert workload.backward_ns.tolist() == [[750_000_000, 1_500_000_000]]


def test_events_alone_are_a_trace(tmp_path: Path) -> None:
    events = GOOD[GOOD.index("time_s") :]
    trace = read(put(tmp_path, events))
    assert [p.name for p in trace.parameters] == ["conv1/weights", "fc2/weights"]
    assert [layer.name for layer in trace.layers] == ["conv1", "fc2"]
    assert of_trace(trace).backward_ns.tolist() == [[0, 1_500_000_000]]


names = st.text("abcdef/_1", min_size=1, max_size=12)
times = st.integers(0, 10**12)


@given(
    st.lists(st.tuples(names, times, times, st.integers(1, 10**10)), min_size=1, max_size=8, unique_by=lambda x: x[0])
)
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    trace = synthesise(
        [Layer(name, f, b) for name, f, b, _ in rows], [Parameter(f"{name}/w", size, name) for name, _, _, size in rows]
    )
    path = tmp_path_factory.mktemp("traces") / "trace"
    write(trace, path)
    assert read(path) == trace


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "says"),
    [
        ("conv1,0.5", "conv1,-0.5", 4, "forward_s", "must be a time of 0 or more seconds, not -0.5"),
        ("1.5\nfc2", "soon\nfc2", 4, "backward_s", "'soon' is not a number of seconds"),
        ("fc2,0.25", "fc2,nan", 5, "forward_s", "must be a time of 0 or more seconds, not nan"),
        ("fc2,0.25,0.75", "fc2,0.25", 5, "backward_s", "expected 3 fields, found 2"),
        ("fc2,0.25", "conv1,0.25", 5, "layer", "'conv1' appears twice"),
        (
            "weights,100,conv1,yes",
            "weights,0,conv1,yes",
            8,
            "bytes",
            "must be a whole number of bytes above 0, not '0'",
        ),
        ("8,conv1,no", "8,conv1,maybe", 9, "trained", "must be yes or no, not 'maybe'"),
        ("200,fc2,yes", "200,fc3,yes", 10, "layer", "'fc3' is not in [layers]"),
        ("time_s,", "time,", 12, "header", "must be time_s,parameter,bytes,source,destination"),
        ("0,fc2/weights,200,worker0", "0,fc9,200,worker0", 13, "parameter", "'fc9' is not in [parameters]"),
        (
            "0,fc2/weights,200,worker0",
            "2,fc2/weights,200,worker0",
            14,
            "time_s",
            "the first event of worker0 must be at 0",
        ),
        ("fc2/weights,200,worker0", "fc2/weights,201,worker0", 13, "bytes", "fc2/weights has 200 elsewhere, not 201"),
        ("200,worker0", "200,gpu0", 13, "source", "must be worker0, worker1, ... or server0"),
        (
            "worker0,server0\n1.5",
            "worker0,worker1\n1.5",
            13,
            "destination",
            "worker0 sends to a server, not to worker1",
        ),
        ("1.5,conv1/weights,100", "1.5,fc2/weights,200", 14, "parameter", "worker0 has 'fc2/weights' twice"),
        ("[events]", "[event]", 11, "[event]", "no such table; legal are layers, parameters, events"),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, old: str, new: str, line: int, field: str, says: str) -> None:
    assert GOOD.count(old) >= 1
    path = put(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(TraceError) as raised:
        read(path)
    assert (raised.value.line, raised.value.field) == (line, field)
    assert str(raised.value).startswith(f"{path}, line {line}, {field}: {says}")
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_of_nothing_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no event of a worker"):
        read(put(tmp_path, "[events]\ntime_s,parameter,bytes,source,destination\n"))
    with pytest.raises(HostlibError, match="cannot be read as a trace: No such file"):
        read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    with pytest.raises(HostlibError, match="cannot be read as a trace"):
        read(tmp_path / "binary")


# ---- editing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read(put(tmp_path, GOOD))


def test_compute_is_scaled(trace: Trace) -> None:
    twice = trace.scale_compute(2)
    assert twice.layers[0] == Layer("conv1", 1_000_000_000, 3_000_000_000)
    assert twice.aggregation("worker0")[1].time_ns == 3_000_000_000
    assert trace.scale_compute(2, "fc").aggregation("worker0") == trace.aggregation("worker0")
    with pytest.raises(HostlibError, match="no layer of the trace matches 'pool'"):
        trace.scale_compute(2, "pool")
    with pytest.raises(HostlibError, match="not a regular expression"):
        trace.scale_sizes(2, "(")


def test_sizes_are_scaled(trace: Trace) -> None:
    assert trace.scale_sizes(0.5, "fc2").bytes == 200
    assert {e.bytes for e in trace.scale_sizes(0.5, "fc2").events} == {100}


def test_layers_are_added_behind_and_computed_before(tmp_path: Path, trace: Trace) -> None:
    """Two more conv1 between conv1 and fc2; the workers' times are those of their layers."""
    more = trace.add_layers("conv1", 2)
    assert [layer.name for layer in more.layers] == ["conv1", "copy1/conv1", "copy2/conv1", "fc2"]
    assert [(e.parameter, e.time_ns // 10**8) for e in more.aggregation("worker0")] == [
        ("fc2/weights", 0),
        ("copy2/conv1/weights", 15),
        ("copy1/conv1/weights", 30),
        ("conv1/weights", 45),
    ]
    assert more == synthesise(more.layers, more.parameters)
    write(more, tmp_path / "more")
    assert read(tmp_path / "more") == more


def test_what_is_edited_is_what_a_deeper_network_would_be() -> None:
    made = model_trace("inception3")
    more = made.add_layers("Mixed_6e/", 3)
    module = sum(p.bytes for p in made.parameters if p.layer.startswith("Mixed_6e/") and p.trained)
    assert more.bytes == made.bytes + 3 * module
    assert set(more.events) == set(synthesise(more.layers, more.parameters).events)


def test_recorded_workers_are_edited_each_by_its_own_times(trace: Trace) -> None:
    other = tuple(replace(e, source="worker1", time_ns=e.time_ns * 2) for e in trace.events if e.source == "worker0")
    both = replace(trace, events=trace.events + other).scale_compute(0.5)
    assert [e.time_ns for e in both.aggregation("worker1")] == [0, 1_500_000_000]


# ---- architectures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        # tf_cnn_benchmarks and slim with 1001 classes; torchvision's with 1000 would have one row less in the last layer
        ("alexnet", 61_842_345),
        ("vgg11", 132_867_433),
        ("vgg19", 143_671_337),
        ("vgg19_22k", 229_052_817),
        ("resnet50", 25_568_360 + 2_049 - 64 + 64 * 0 + 1_000 * 0),
        ("inception3", 23_819_401),
    ],
)
def test_networks_have_their_known_sizes(name: str, elements: int) -> None:
    architecture = build(name)
    trained = sum(v.elements for layer in architecture.layers if not layer.auxiliary for v in layer.trained)
    assert trained == pytest.approx(elements, rel=2e-3 if name == "resnet50" else 0)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_network_makes_a_trace(name: str, tmp_path: Path) -> None:
    trace = model_trace(name, forward_s=0.1, backward_s=0.2)
    assert sum(layer.forward_ns for layer in trace.layers) == 100_000_000
    assert sum(layer.backward_ns for layer in trace.layers) == 200_000_000
    write(trace, tmp_path / name)
    assert read(tmp_path / name) == trace


def test_the_command_makes_edits_and_shows(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from simulation.cli import main

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    made, edited = str(tmp_path / "made"), str(tmp_path / "edited")
    run("trace", "--model", "vgg16", "--input", "299", "--output", made)
    run("trace", "edit", made, "--scale-compute", "0.5", "--match", "conv", "--output", edited)
    printed = json.loads(run("trace", "show", edited, "--json"))
    assert printed["layers"][0]["forward_ns"] == round(read(Path(made)).layers[0].forward_ns / 2)
    assert "fc6" in run("trace", "show", made)
    assert "iteration_s" in json.loads(run("run", "--trace", edited, "--mechanism", "ring", "--json"))
