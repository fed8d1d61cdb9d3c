"""`controller doctor`: whether the controller, its files and its switches are as they should be."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from controller.commands.running_controller import ask, running_state
from controller.commands.state_dir import state_dir_option
from controller.errors import ArtifactError, ControllerError
from controller.switches.program import load_artifact
from hostlib.system.command import Command, json_option
from hostlib.text.output import output

SPACE_BYTES = 100 << 20
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        state: ok, warn (it works, but somebody should look) or fail.
        remedy: what to do; empty if ok.
    """

    name: str
    state: str
    found: str
    remedy: str = ""


@click.command(cls=Command)
@state_dir_option
@json_option
def doctor(state_dir: Path, as_json: bool) -> None:
    """Check the controller, its files, switches and jobs, and say what to do. The exit code is 1 if a check fails."""
    findings = list(examine(state_dir))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for each in findings:
            remedy = f" -> {each.remedy}" if each.remedy else ""
            line = f"[{STYLES[each.state]}]{each.state:<5}[/]{escape(f'{each.name}: {each.found}{remedy}')}"
            output().print(line, highlight=False, soft_wrap=True)
    if any(finding.state == "fail" for finding in findings):
        sys.exit(1)


def examine(state_dir: Path) -> Iterator[Finding]:
    """Check the files, then the process, then what it says of switches and jobs."""
    yield from _files(state_dir)
    try:
        state = running_state(state_dir)
        status = ask(state_dir, "/status")
    except ControllerError as error:
        yield Finding("controller", "fail", str(error), "controller start, or controller run --config FILE")
        return
    where = f"{state.http}, pid {state.controller.pid}, version {status['version']}"
    installed = _installed()
    if status["version"] == installed:
        yield Finding("controller", "ok", where)
    else:
        yield Finding("controller", "warn", f"{where}, but {installed} is installed", "restart it")
    try:
        load_artifact(status["elements"])
        yield Finding("P4 program", "ok", f"{status['elements']} elements per packet, as its lock says")
    except ArtifactError as error:
        yield Finding("P4 program", "fail", str(error), "install netfold again, or make p4")
    for switch in status["switches"]:
        yield _switch(switch)
    yield from _cables(status["cables"])
    slots = ask(state_dir, "/slots")
    yield Finding("slots", "ok", f"{slots['used']} of {slots['slots']} taken")
    for job in status["jobs"]:
        yield _job(job)
        yield from _ports(job)


def _files(state_dir: Path) -> Iterator[Finding]:
    if not state_dir.is_dir() or not os.access(state_dir, os.W_OK | os.X_OK):
        remedy = "choose another --state-dir, or another user"
        yield Finding("state folder", "fail", f"{state_dir} is no folder that this user can write", remedy)
        return
    free = shutil.disk_usage(state_dir).free
    found = f"{state_dir}, {free >> 20:,} MiB free"
    if free < SPACE_BYTES:
        yield Finding("state folder", "warn", found, "make space: a controller that cannot write keeps no events")
    else:
        yield Finding("state folder", "ok", found)


def _installed() -> str:
    try:
        return version("netfold")
    except PackageNotFoundError:
        return "uninstalled"


def _switch(switch: dict[str, Any]) -> Finding:
    name, where = f"switch {switch['name']}", f"{switch['program']} at {switch['p4rt']}"
    if not switch["up"]:
        return Finding(name, "fail", f"{where}: it does not answer", "start it again: the controller finds it")
    refused = sum(switch["drops"].values())
    if switch["draining"]:
        found = f"{where}, takes no new jobs; still on it: {', '.join(switch['jobs']) or 'none'}"
        return Finding(name, "warn", found, f"controller drain {switch['name']} --undo when it shall take some again")
    if switch["restarts"]:
        found = f"{where}, recovered {switch['restarts']} times, {refused:,} packets dropped"
        return Finding(name, "warn", found, "controller events says when")
    return Finding(name, "ok", f"{where}, {refused:,} packets dropped")


def _cables(cables: list[dict[str, Any]]) -> Iterator[Finding]:
    for cable in cables:
        if cable["state"] in ("crossed", "silent"):
            yield Finding("cable", "fail", cable["text"], "plug it in there, or say in the topology where it is")
    unchecked = [cable for cable in cables if cable["state"] == "unchecked"]
    if unchecked:
        found = f"{len(unchecked)} of {len(cables)} directions of cables between switches are unchecked"
        yield Finding("cables", "warn", found, "give switches a cpu_port in the topology (docs/topology.md)")
    elif cables and all(cable["state"] == "right" for cable in cables):
        yield Finding("cables", "ok", f"{len(cables) // 2} between switches, both directions")


def _job(job: dict[str, Any]) -> Finding:
    name = f"job {job['name']}"
    lost = sorted(rank["rank"] for rank in job["ranks"] if rank["state"] == "lost")
    if lost:
        remedy = "look at their processes; the job ends when all its ranks are gone"
        return Finding(name, "fail", f"no heartbeats from rank {', '.join(map(str, lost))}", remedy)
    there = f"{job['state']}, {len(job['ranks'])} members, {job['world_size']} ranks"
    if job["state"] == "queued":
        return Finding(name, "ok", f"queued, number {job['queue_position']}")
    if job["state"] != "ready":
        return Finding(name, "warn", there, "start the missing ranks, or end the others")
    return Finding(name, "ok", there)


def _ports(job: dict[str, Any]) -> Iterator[Finding]:
    for rank in job["ranks"]:
        if rank["port"] == "silent":
            remedy = "plug its host in there, or say in the topology where it is"
            yield Finding("port", "fail", rank["port_text"], remedy)


PLACE = 26
COMMANDS = (doctor,)
