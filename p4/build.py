"""`make p4`: compile the P4 programs whose compiler is on PATH, and verify the committed artifacts of the others.

Either way p4/build/ matches its lock.json: sha256 of every source and artifact, and the version of the compiler; for
v1model (p4c-bm2-ss) at the top, for TNA and T2NA (bf-p4c) under "tofino" and "tofino2".
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

P4 = Path(__file__).resolve().parent
BUILD = P4 / "build"
LOCK = BUILD / "lock.json"
PAGE = P4.parent / "docs/tofino.md"
MARK = "<!-- generated from p4/build/netfold-t*na-*.resources.json -->"
Section = dict[str, Any]  # a section of the lock: compiler version, sources, artifacts


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"


def run(*command: str) -> str:
    """Run a command in p4/; returns its output. Relative paths keep the machine's folders out of the artifacts."""
    done = subprocess.run(command, cwd=P4, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.stderr.strip()}\nerror: {command[0]} failed with exit code {done.returncode}")
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Target:
    """A compiler of the program, for some vector sizes.

    Attributes:
        name: of its architecture.
        folder: of its sources, beside common/.
        compile_program: (elements, output folder) -> names of the artifacts.
    """

    name: str
    folder: str
    compiler: str
    version: str
    elements: tuple[int, ...]
    compile_program: Callable[[int, Path], list[str]]

    def sources(self) -> dict[str, str]:
        """sha256 by path relative to p4/."""
        paths = sorted([*P4.glob("common/*.p4"), *P4.glob(f"{self.folder}/*.p4")])
        return {path.relative_to(P4).as_posix(): digest(path) for path in paths}

    def build(self) -> Section:
        """Compile all sizes; artifacts and lock change together or not at all."""
        found = re.search(self.version, run(self.compiler, "--version"))
        with tempfile.TemporaryDirectory(dir=P4) as scratch:
            names = [name for e in self.elements for name in self.compile_program(e, Path(scratch))]
            BUILD.mkdir(exist_ok=True)
            for name in names:
                shutil.move(Path(scratch) / name, BUILD / name)
        version = found.group(1) if found else "unknown"
        print(f"p4: compiled {len(self.elements)} {self.name} programs with {self.compiler} {version}")
        return {
            "p4c": version,
            "sources": self.sources(),
            "artifacts": {name: digest(BUILD / name) for name in sorted(names)},
        }

    def verify(self, locked: Section) -> Section:
        """Check sources and artifacts against the lock. Raises SystemExit, with one line that names the file."""
        artifacts = {name: digest(BUILD / name) for name in locked["artifacts"]}
        for kind, now, before in (
            ("source", self.sources(), locked["sources"]),
            ("artifact", artifacts, locked["artifacts"]),
        ):
            for name in sorted(now.keys() | before.keys()):
                if now.get(name) != before.get(name):
                    raise SystemExit(
                        f"error: {kind} {name} does not match p4/build/lock.json: install {self.compiler} "
                        "(docs/p4c.md, docs/tofino.md) and run make p4, or restore the file with git"
                    )
        print(f"p4: {self.name} artifacts match their lock (compiled by {self.compiler} {locked['p4c']})")
        return locked


def compile_v1model(elements: int, into: Path) -> list[str]:
    """Compile to BMv2 JSON and P4Info."""
    program = f"netfold-v1model-{elements}"
    json_file, p4info = into / f"{program}.json", into / f"{program}.p4info.txtpb"
    options = ["--std", "p4-16", f"-DELEMENTS={elements}", "-o", str(json_file), "--p4runtime-files", str(p4info)]
    run(V1MODEL.compiler, *options, "v1model/netfold.p4")
    # The compiler writes the name of its input file in several spellings; one spelling makes artifacts reproducible.
    described = json.loads(json_file.read_text())
    described["program"] = "v1model/netfold.p4"
    json_file.write_text(json.dumps(described, separators=(",", ":")) + "\n")  # 4 MB with 2,048 elements
    return [json_file.name, p4info.name]


def compile_chip(chip: str, architecture: str, elements: int, into: Path) -> list[str]:
    """Compile to P4Info, the driver's files (binary, context, BF-RT schema), and the chip's resource usage."""
    program = f"netfold-{architecture}-{elements}"
    out = into / program
    p4info, loaded, resources = (into / f"{program}{end}" for end in (".p4info.txtpb", ".tar.gz", ".resources.json"))
    # -g makes the compiler report resources. Counters in P4Info are P4Runtime's own, as v1model's are.
    options = ["--target", chip, "--arch", architecture, "-g", f"-DELEMENTS={elements}", "-o", str(out)]
    options += ["--p4runtime-files", str(p4info), "--p4runtime-force-std-externs"]
    run(TNA.compiler, *options, "tna/netfold.p4")
    used = json.loads((out / "pipe/logs/metrics.json").read_text())
    once = {used["run_id"]: "0" * len(used["run_id"]), used["build_date"]: "-"}
    if idle := parsers_without_choice(json.loads((out / "pipe/context.json").read_text())):
        # p4c between its pull requests 5063 and 5753 drops every select on packet data.
        raise SystemExit(
            f"error: {TNA.compiler} wrote a parser that takes every frame one way ({', '.join(idle)}): use a newer one"
        )
    archive(loaded, out, (f"pipe/{chip}.bin", "pipe/context.json", "bfrt.json"), once)
    found = json.loads((out / "pipe/logs/resources.json").read_text())["resources"]
    resources.write_text(json.dumps(summary(elements, used, found), indent=1) + "\n")
    return [p4info.name, loaded.name, resources.name]


def parsers_without_choice(context: dict[str, Any]) -> list[str]:
    """The parsers of a driver's context in which each state has one row, so looks at nothing; the program's choose."""
    names = {gress: [row["parser_name"] for row in rows] for gress, rows in context["parser"].items()}
    return [gress for gress, states in names.items() if len(set(states)) == len(states)]


def archive(path: Path, root: Path, names: Iterable[str], once: dict[str, str]) -> None:
    """Pack files without what differs between runs: `once`, dates and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            data = (root / name).read_bytes()
            if name.endswith("context.json"):
                data = re.sub(rb'("build_date": ")[^"]*', rb"\1-", data)
            if name == "bfrt.json":
                data = in_order(data)
            for before, after in once.items():
                data = data.replace(before.encode(), after.encode())
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def in_order(schema: bytes) -> bytes:
    """Sort the tables of a BF-RT schema by name.

    The compiler's order of snapshot tables changes between runs, and with it the id of the table that configures them,
    which is derived from the id of the first one.
    """
    described = json.loads(schema)
    described["tables"].sort(key=lambda table: table["name"])
    for table in described["tables"]:
        table.get("depends_on", []).sort()
        if table["name"] == "pipe.snapshot.cfg":
            table["id"] = table["depends_on"][0] - (1 << 24)
    return json.dumps(described, indent=1).encode()


# Resources of a stage, by the compiler's names.
PER_STAGE = {"meter_alus": 4, "rams": 80, "map_rams": 48, "tcams": 24, "gateways": 16, "logical_tables": 16}


def summary(elements: int, used: dict[str, Any], resources: dict[str, Any]) -> dict[str, Any]:
    """A program's use of a chip, in the compiler's own figures."""
    containers: Counter[str] = Counter()
    for group in resources["phv_containers"]["normal"]:
        containers[str(group["width"])] += group["units"]

    def taken(of: dict[str, Any]) -> int:
        return next(len(found) for found in of.values() if isinstance(found, list))

    return {
        "elements": elements,
        "stages": [
            {name: taken(stage[name]) for name in PER_STAGE}
            | {"tables": sorted({each["table_name"] for each in stage["logical_tables"]["ids"]})}
            for stage in resources["mau"]["mau_stages"]
        ],
        "containers": dict(containers),
        "phv": {each["bit_width"]: each["containers_occupied"] for each in used["phv"]["normal"]},
        "parser_rows": {gress: found["tcam_rows"] for gress, found in used["parser"].items()},
        "latency_cycles": {each["gress"]: each["cycles"] for each in used["mau"]["latency"]},
    }


def describe(programs: Iterable[tuple[str, dict[str, Any]]], version: str) -> str:
    """The tables of docs/tofino.md."""
    out = [f"Compiled by p4c {version} (`bf-p4c`), figures of its reports.", ""]
    for chip, program in programs:
        stages = program["stages"]
        out += [
            f"### {chip}, {program['elements']} elements",
            "",
            "| stage | tables | stateful ALUs | SRAM | map RAM | TCAM | gateways |",
            "|---|---|---|---|---|---|---|",
        ]
        for number, stage in enumerate(stages):
            figures = [stage[name] for name in ("meter_alus", "rams", "map_rams", "tcams", "gateways")]
            out.append(f"| {number} | {holds(stage['tables'])} | {' | '.join(map(str, figures))} |")
        sums = [
            f"{sum(s[name] for s in stages)} of {PER_STAGE[name] * len(stages)}"
            for name in ("meter_alus", "rams", "map_rams", "tcams", "gateways")
        ]
        out.append(f"| all {len(stages)} | | {' | '.join(sums)} |")
        phv = ", ".join(f"{program['phv'][w]} of {n} with {w} bits" for w, n in program["containers"].items())
        rows, cycles = program["parser_rows"], program["latency_cycles"]
        out += [
            "",
            f"PHV containers that actions compute with: {phv}. Parser: {rows['ingress']} rows in ingress, {rows['egress']} in egress. "
            f"Latency: {cycles['ingress']} and {cycles['egress']} cycles.",
            "",
        ]
    return "\n".join(out)


def holds(tables: list[str]) -> str:
    """The tables of a stage by name: element tables as a count, unnamed ones omitted."""
    named = [t.removeprefix("ingress.").removeprefix(".") for t in tables if not t.startswith(("tbl_", "cond"))]
    elements = [t for t in named if re.fullmatch(r"vector\.work_e\w\w", t)]
    counted = [f"{len(elements)} element units"] if elements else []
    return ", ".join([*(f"`{t}`" for t in named if t not in elements), *counted])


def page(text: str, version: str) -> str:
    """Regenerate the tables of docs/tofino.md."""
    programs = [
        (chip, json.loads((BUILD / f"netfold-{target.name}-{elements}.resources.json").read_text()))
        for chip, target in (("Tofino 1", TNA), ("Tofino 2", T2NA))
        for elements in target.elements
    ]
    before, _, after = text.split(MARK)
    return f"{before}{MARK}\n\n{describe(programs, version)}\n{MARK}{after}"


V1MODEL = Target("v1model", "v1model", "p4c-bm2-ss", r"Version (\S+)", (64, 256, 1024, 2048), compile_v1model)
TNA = Target("tna", "tna", "bf-p4c", r"p4c (\S+)", (32, 64), partial(compile_chip, "tofino", "tna"))
T2NA = Target("t2na", "tna", "bf-p4c", r"p4c (\S+)", (64,), partial(compile_chip, "tofino2", "t2na"))
CHIPS = {"tofino": TNA, "tofino2": T2NA}  # by their sections of the lock


def main(verify_only: bool) -> None:
    lock: Section = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    if verify_only or shutil.which(V1MODEL.compiler) is None:
        if not lock:
            raise SystemExit(f"error: {LOCK} is missing: install p4c (docs/p4c.md) and run make p4")
        V1MODEL.verify(lock)
    else:
        lock |= V1MODEL.build()
        LOCK.write_text(json.dumps(lock, indent=1) + "\n")
    if not verify_only and shutil.which(TNA.compiler):
        lock |= {section: target.build() for section, target in CHIPS.items()}
        LOCK.write_text(json.dumps(lock, indent=1) + "\n")
        if PAGE.exists():
            PAGE.write_text(page(PAGE.read_text(), lock["tofino"]["p4c"]))
    elif "tofino" in lock:
        for section, target in CHIPS.items():
            target.verify(lock[section])
        if PAGE.exists() and PAGE.read_text() != page(PAGE.read_text(), lock["tofino"]["p4c"]):
            raise SystemExit(f"error: the tables of docs/{PAGE.name} do not match p4/build/: restore them with git")


if __name__ == "__main__":
    main("--verify" in sys.argv[1:])
