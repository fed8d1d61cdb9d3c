"""What README and docs tell people to type, and how each of it is made small enough, or why it cannot be run, for a test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

COMMANDS = "commands.md"  # made of the commands themselves
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != COMMANDS),
    *sorted((ROOT / "docs/measurements").glob("*.md")),
]
OURS = ("controller", "hostlib", "emulation", "netfold", "simulation")
OTHERS = ("make", "python", "python3", "torchrun", "mpirun", "curl", ".", "ip", "pytest", "sudo", "env", "cmp")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILE_NAME = re.compile(r"# (\S+\.(?:py|toml))\n")
SHELLS = ("sh", "bash", "console")
INLINE = re.compile(rf"`((?:{'|'.join(OURS)}) [a-z]+ [^`]+)`")
WORD = re.compile(r"(?:\w+=\S+ )*(?:sudo )?(?:\S*/bin/)?([\w.-]+)(?: |$)")

# The commands after a switch in the background want it to listen.
UNTIL_READY = "timeout 20 sh -c 'until [ -e ready ]; do sleep 0.05; done'"
UNTIL_THERE = "timeout 60 sh -c 'until controller status; do sleep 0.2; done'"


@dataclass(frozen=True, slots=True)
class Smaller:
    """The command after a substitution: a regular expression, and what is put in place of what fits."""

    old: str
    new: str

    def applied(self, command: str) -> str:
        return re.sub(self.old, self.new, command, count=1)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Not run, and why."""

    why: str


# For a command, the first of those whose expression fits all of it; one that is not here is run as it is.
TABLE: dict[str, Sequence[Smaller] | Elsewhere] = {
    # Everything.
    r"make wheels": Elsewhere("a wheel for each Python: tests/process/test_install.py makes them"),
    r"make (demo|test|p4)\b.*": Elsewhere("CI runs the targets; test_demo.py, test_structure.py try what they do"),
    r".*\bpytest\b.*": Elsewhere("the suite itself"),
    r".*--device cuda.*": Elsewhere("needs a GPU"),
    r"emulation tofino-model .*|controller start .*--target tofino .*|emulation run --switch tofino-model": Elsewhere(
        "needs the model of Tofino; tests/emulation/test_tofino_model.py runs jobs through it"
    ),
    r"emulation conformance .*": Elsewhere("needs p4c and its sources"),
    r"netfold switch --like-bmv2": [Smaller("$", " --json-version")],
    r"(shell|finsy)/bin/python .*|PYTHON=.*ptf/run\.sh": Elsewhere("needs other P4Runtime clients, installed apart"),
    r".*[A-Z]{4,}.*\.\.\.|hostlib (poseidon|models) MODEL.*|emulation (topology|run) FILE.*|.*--model NAME": Elsewhere(
        "a form, no command"
    ),
    r"python3 -m (venv|pip install --constraint) .*": Elsewhere("what `make` does; test_tutorials.py has the base install"),
    # Real networks and hosts.
    r"emulation run .*--hosts .*": Elsewhere("needs hosts; tests/emulation/test_experiments.py has two on one machine"),
    r"(emulation switch|ip route add|controller start) .*(dev h1|s1-h1|=s1|topology\.json).*": Elsewhere(
        "needs cables between hosts and switches; tests/integration/test_tree.py makes them"
    ),
    r"controller discover .*": Elsewhere("needs running switches; tests/integration/controller/test_discover.py has some"),
    r"hostlib doctor .*": [Smaller("$", " || true")],  # Its exit code says how the machine is.
    r"emulation report .*jq .*": [Smaller(r"jq \S+", "python3 -m json.tool")],  # jq may not be there.
    # Into the page's folder, which is on PYTHONPATH, with the setuptools that is there.
    r"python3 -m pip install \./my-mechanisms": [
        Smaller("install", "install --quiet --no-deps --no-build-isolation --upgrade --target .")
    ],
    r"netfold suite run .*--hosts .*": Elsewhere("needs hosts; tests/process/emulation/test_suite.py has two on one machine"),
    r"(sudo )?(systemctl|cp) .*": Elsewhere("needs systemd; tests/process/controller/test_systemd.py has it check the unit"),
    r"controller events --follow": Elsewhere("does not end; tests/integration/commands/test_controller_commands.py follows"),
    r"controller run .*standby.*&": [Smaller("$", " timeout 60 sh -c 'until controller status | grep -q standby; do sleep 0.2; done'")],
    r"controller run .*&": [Smaller("$", f" {UNTIL_THERE}")],
    r"controller end .*": Elsewhere("needs a job; tests/integration/commands/test_controller_commands.py has one"),
    # What would take long.
    r"hostlib bubble --forward .*": [Smaller(r"--forward \S+ --backward \S+", "--forward 2ms --backward 4ms")],
    r"netfold suite run .*--way train .*": [
        Smaller(r"(--real-time )?--datasets \S+( --networks \S+)?", "--datasets mnist --networks mobilenet2"),
        Smaller("$", " --only 2w --frameworks ring --iterations 1"),
    ],
    r"netfold suite run .*--way replay --real-time .*": [
        Smaller("--real-time --auto-dilate", "--datasets mnist --networks vgg11"),
        Smaller("sequential,ring,ps,inagg.mcast,hybcomm,gpipe,1f1b", "ring,gpipe"),
        Smaller("$", " --workers 2 --iterations 1"),
    ],
    r"netfold suite run .*--way replay .*": [Smaller("$", " --only 2w --workers 2 --iterations 1")],
    r"netfold suite run .*(--gpu-memory|--output build/hosts-|microbatches=).*": [Smaller("$", " --datasets mnist --networks vgg11")],
    r"netfold suite run.*": [Smaller("resnet18,", ""), Smaller("$", " --networks vgg11 --frameworks sequential,ring")],
    r"netfold emulate experiment\.toml": [Smaller("$", " --only ring-")],
    r"netfold switch .*&": [
        Smaller("--exit-when-idle 300", "--exit-when-idle 20 --ready-file ready"), Smaller("$", f" {UNTIL_READY}")
    ],
    r"netfold switch .*": [Smaller("$", " --exit-when-idle 0.5")],
    r"netfold train .*": [Smaller("( --iterations 20)?$", " --iterations 2")],
    r"netfold ask --search": Elsewhere("names the command; a model is missing"),
    r"netfold ask --search .*--links .*": Elsewhere("needs links that were measured; docs/bench.md measures some and asks"),
    r"netfold ask --search --mix .*": Elsewhere("tests/unit/netfold/test_recommend.py has such a file"),
    r"emulation run fabric-vs-host( --real-time)?( --miniature)?": [
        Smaller("( --real-time)?( --miniature)?$", " --miniature --only inception3-ring-")
    ],
    r"emulation sample .*--cells .*": [Smaller(r"--cells \d+", "--cells 1")],
    r"emulation run build/(random|questions)( --real-time)?( --auto-dilate)?": [
        Smaller("( --real-time)?( --auto-dilate)?$", " --miniature")
    ],
    r"emulation run [a-z]+( --real-time)?": Elsewhere("tests/emulation/test_ready_experiments.py runs it in miniature"),
    r"simulation run emulation/.*": [Smaller("emulation/", f"{ROOT}/emulation/")],
    r"simulation calibrate docs/.*": [Smaller("docs/", f"{ROOT}/docs/")],
    r"emulation demo .*": [Smaller("$", " --epochs 1 --mechanism inagg+mcast")],
    r"emulation bench.*": [Smaller("--duration 5s", ""), Smaller("$", " --duration 100ms")],
    r"emulation switch .*wire:.*": [Smaller("$", " --exit-when-idle 0.5")],
    r"emulation switch .*": [Smaller("$", " --exit-when-idle 0.5")],
    r"python -m tests\.chaos\.comings .*": [Smaller(r"--jobs \d+ --minutes \d+", "--jobs 5 --minutes 0.2")],
    r"python -m tests\.chaos\.crowd .*": [Smaller(r"--seconds \d+", "--seconds 1 --connections 50 --mebibytes 1")],
    r"python -m tests\.chaos\.run .*": [Smaller(r"--runs \d+", "--runs 1")],
    r"hostlib train .*--chrome-traces .*": [Smaller("resnet18", "lenet")],
    r"hostlib train .*--iterations.*": [Smaller(r"--iterations \d+", "--iterations 2"), Smaller(r"\w+:/data/\w+", "synthetic")],
    r"hostlib train --json": Elsewhere("a form of the others"),
    r"hostlib profile --import .*": Elsewhere("needs a profile of PyTorch's; tests/unit/test_profile.py makes one"),
    r"(torchrun .*|controller start && )?(-m )?hostlib[ .]train .*": [
        Smaller(r"\w+:/data/\w+", "synthetic"), Smaller("$", " --iterations 2")
    ],
    r"mpirun .*mpi-shim.*": [Smaller("mpirun", "mpirun --oversubscribe")],
    r"mpirun .*": [Smaller("mpirun", "mpirun --oversubscribe"), Smaller("$", " --iterations 2")],
    r"hostlib bench --(calibrate|path|probe).*": [],
    r"hostlib bench .*": [
        Smaller(r"netns --workers \d --ranks-per-host \d", "netns --ranks-per-host 2 --workers 4"),
        Smaller(r"netns --workers \d", "netns --workers 2"), Smaller("--to 16M", "--to 16K"), Smaller(r"--size \S+", ""),
        Smaller(r"( --(iterations|repeats|warm-up) \d+)+", ""), Smaller("^(?!.*--to)(.*)$", r"\1 --size 16K"),
        Smaller("^(?!.*--mechanism)(.*)$", r"\1 --mechanism ring,inagg+mcast"), Smaller("$", " --iterations 1 --repeats 1"),
    ],
    r"hostlib converge .*": [Smaller("--iterations 400", "--iterations 4"), Smaller("docs/measurements/", "")],
    r"hostlib overlap .*": [Smaller("resnet18", "lenet"), Smaller("--iterations 11", "--iterations 6 --repeats 1")],
    r"hostlib cgdp check .*": [Smaller("cifar10_quick", "lenet"), Smaller("--chunk 1,2,3", "--chunk 2"), Smaller("$", " --iterations 1")],
    r"hostlib profile --model resnet18 .*": [Smaller("--batch 8", "--batch 1 --iterations 1")],
    r"simulation paper (all|1 4|summary) ?.*": [Smaller("all|summary", "ralp2 poseidon1"), Smaller("1 4 6 7 8 9 10", "4")],
    r"simulation sweep .*": [
        Smaller(r"--workers \S+", "--workers 4,8"), Smaller("^(?!.*--mechanism)(.*)$", r"\1 --mechanism ring,ps")
    ],
}  # fmt: skip
GENERAL = (Smaller(r"\s+#.*$", ""), Smaller("^sudo ", ""), Smaller(r"^(env PATH=\S+ )?(\.venv/bin/)", ""))

# What a page takes for granted; run before its commands.
BEFORE = {
    "bench.md": "controller start",
    "cgdp.md": "simulation trace --model resnet50 --output resnet18.trace && "
    """python3 -c 'import json; print(json.dumps({str(n): 1 + abs(n - 9) / 9 for n in range(1, 200)}))' > times.json""",
    "emulation-networks.md": """printf '[topology]\\nkind = "leaf-spine"\\n' > network.toml""",
    "poseidon.md": "controller start",
    "tutorial-p4.md": f"ln -s {ROOT}/p4 p4",
    "ralp.md": "controller start",
    "strategies.md": "controller start",
    "tofino.md": "controller start",
}
# A network of one's own, as models.md and ralp.md name one.
NETWORK = """
from torch import nn

def net():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    model.input_shape = (3, 4, 4)
    return model

network = net
"""


def written_on(page: Path) -> list[str]:
    """The command lines of a page, in its order: in shell blocks, indented, or as code within a sentence."""
    found: list[tuple[int, str]] = []
    text = page.read_text()
    for block in FENCED.finditer(text):
        if block[1] in SHELLS:
            lines = block[2].replace("\\\n", " ").splitlines()
            found += [(block.start() + n, line) for n, line in enumerate(lines) if line.strip()]
    # Blanked, so that places in the page stay what they are.
    prose = FENCED.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)
    for line in re.finditer(r"^ {4}(\S.*)$", prose, re.M):
        word = WORD.match(line[1])
        if word is not None and word[1] in (*OURS, *OTHERS):
            found.append((line.start(), line[1]))
    found += [(code.start(), " ".join(code[1].split())) for code in INLINE.finditer(prose)]
    return list(dict.fromkeys(command.removeprefix("$ ").strip() for _, command in sorted(found)))


def files_on(page: Path) -> dict[str, str]:
    """The files that a page has its readers save: blocks that begin with a comment of nothing but the name."""
    return {name[1]: block[2] for block in FENCED.finditer(page.read_text()) if (name := FILE_NAME.match(block[2]))}


def plain(command: str) -> str:
    """Without its comment, and without what says where it is installed and by whom it is run."""
    for each in GENERAL:
        command = each.applied(command)
    return command


def entry(command: str) -> str | None:
    """The expression of the table that fits a plain command."""
    return next((fits for fits in TABLE if re.fullmatch(fits, command)), None)


def small(command: str) -> str | Elsewhere:
    """What is run instead of a plain command."""
    how = TABLE.get(entry(command) or "", ())
    if isinstance(how, Elsewhere):
        return how
    for each in how:
        command = each.applied(command)
    return command
