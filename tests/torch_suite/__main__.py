"""Run torch's own distributed tests on a backend, and compare with the list of what may fail.

Usage: python -m tests.torch_suite [--backend netfold|gloo] [--mechanism inagg+mcast] [NAME ...]

Prints a line for each test and a line of counts, and writes build/torch-suite-BACKEND.json. Ends with 1 if a test fails
that is not listed in expected.py, or one passes that is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.conftest import ROOT, running_fabric
from tests.torch_suite.expected import FAILS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torch_suite")
    parser.add_argument("--backend", default="netfold", choices=("netfold", "gloo"))
    parser.add_argument("--mechanism", default="inagg+mcast")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    os.environ |= {
        "BACKEND": options.backend,
        "WORLD_SIZE": "2",
        "TEMP_DIR": folder,
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "NETFOLD_MECHANISM": options.mechanism,
    }
    with running_fabric(Path(folder, "fabric")) as fabric:
        os.environ["NETFOLD_CONTROLLER"] = fabric.http
        outcomes = run(options.names)
    record = ROOT / "build" / f"torch-suite-{options.backend}.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(outcomes, indent=1))
    return report(outcomes, FAILS if options.backend == "netfold" else None)


def run(names: list[str]) -> dict[str, tuple[str, str]]:
    """The outcome of each test, with why."""
    import torch.distributed  # noqa: F401

    import netfold

    netfold.register()
    from tests.torch_suite import frameworks, suite

    outcomes, scripts = {}, frameworks.names() if os.environ["BACKEND"] == "netfold" else []
    for name in names or [*suite.names(), *scripts]:
        outcomes[name] = frameworks.outcome(name) if name in scripts else suite.outcome(name)
        print(f"{name}: {': '.join(filter(None, outcomes[name]))}", flush=True)
    return outcomes


def report(outcomes: dict[str, tuple[str, str]], expected: dict[str, str] | None) -> int:
    counts = Counter(what for what, _ in outcomes.values())
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    if expected is None:
        return 0
    failed = {name for name, (what, _) in outcomes.items() if what == "failed"}
    passed = {name for name, (what, _) in outcomes.items() if what == "passed"}
    for name in sorted(failed - set(expected)):
        print(f"{name} fails, and is not listed: {outcomes[name][1]}")
    for name in sorted(passed & set(expected)):
        print(f"{name} passes, and is listed as failing: {expected[name]}")
    return 1 if failed - set(expected) or passed & set(expected) else 0


if __name__ == "__main__":
    sys.exit(main())
