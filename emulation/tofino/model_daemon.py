"""A Tofino's model as a switch: ports, P4Runtime server and packet loop."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from controller.target import TOFINO
from emulation.errors import ModelError
from emulation.switch.daemon import POLL_S, SPARE_FILES, Stopping
from emulation.switch.p4runtime.server import SwitchService, serve
from emulation.switch.ports.open_port import OpenPort, open_ports
from emulation.switch.ports.port_spec import Endpoint, PortSpec
from emulation.switch.tls import Tls
from emulation.tofino.harness import HARNESS, require_model
from emulation.tofino.model_pipeline import ModelPipeline
from emulation.tofino.port_frames import PortFrames, require_plain
from hostlib.system.process import write_whole

MOST_PORT = 63  # of pipe 0; behind them are those of the CPU and of recirculation
AT_ONCE = 32  # frames of a port that enter together; the model takes about ten milliseconds for each


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Options of a model.

    Attributes:
        command: the model's program.
        destination: destination address in rebuilt headers of UDP ports; None for each port's own address.
        ready_file: addresses and process IDs, once everything listens.
        tls: of P4Runtime; None speaks plain text.
    """

    p4rt: Endpoint
    ports: list[PortSpec]
    device_id: int = 1
    command: str = HARNESS
    destination: Endpoint | None = None
    ready_file: Path | None = None
    tls: Tls | None = None


def run_model(config: ModelConfig, announce: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Run until SIGTERM or SIGINT, or until the model has ended.

    Args:
        announce: called once everything listens, with what the ready file says.

    Raises:
        EmulationError: it could not start, or the model has ended; nothing is left open.
    """
    stopping = Stopping()
    require_model(config.command)  # Fail now rather than when the first controller connects.
    for spec in config.ports:
        require_plain(spec)
    with ExitStack() as stack:
        opened = open_ports(config.ports, SPARE_FILES)
        for each in opened:
            stack.callback(each.close)
        ports = {each.number: PortFrames(each, config.destination) for each in opened}
        running: list[ModelPipeline] = []

        def replaced(new: ModelPipeline, old: ModelPipeline | None) -> None:
            running[:] = [new]
            if old is not None:
                old.close()

        def leaves(frame: tuple[int, bytes]) -> None:
            if frame[0] in ports:
                ports[frame[0]].send([frame[1]])

        make = partial(ModelPipeline, ports=list(ports), command=config.command, leaves=leaves)
        service = SwitchService(config.device_id, replaced, make=make)
        stack.callback(service.close)
        server, p4rt_port = serve(service, str(config.p4rt), config.tls)
        stack.callback(lambda: server.stop(grace=0.2).wait())
        ready = _ready(config, opened, p4rt_port)
        if config.ready_file is not None:
            stack.callback(config.ready_file.unlink, missing_ok=True)
            write_whole(config.ready_file, ready)
        if announce is not None:
            announce(ready)
        waiting = stack.enter_context(selectors.DefaultSelector())
        for port in ports.values():
            waiting.register(port, selectors.EVENT_READ, port)
        watched: ModelPipeline | None = None
        while not stopping.event.is_set():
            if running and running[0] is not watched:
                for file in watched.files if watched is not None else ():
                    waiting.unregister(file)
                watched = running[0]
                for file in watched.files:
                    waiting.register(file, selectors.EVENT_READ)
            ready_ports = [key.data for key, _ in waiting.select(POLL_S) if key.data is not None]
            arrived = [[(port.number, frame) for frame in port.receive(AT_ONCE)] for port in ready_ports]
            if watched is not None:
                _pass(watched, arrived)


def _pass(pipeline: ModelPipeline, arrived: list[list[tuple[int, bytes]]]) -> None:
    """Frames of several ports into the model, in turns."""
    try:
        pipeline.put([frame for turn in zip_longest(*arrived) for frame in turn if frame is not None])
    except ModelError:
        if not pipeline.ended:  # by a controller that pushed another program
            raise


def _ready(config: ModelConfig, ports: list[OpenPort], p4rt_port: int) -> dict[str, Any]:
    listed = {
        name: {str(each.number): str(each.endpoint) for each in ports if name == each.spec.place.LISTED}
        for name in ("ports", "wires")
    }
    return {
        "pid": os.getpid(),
        "p4rt": f"{config.p4rt.address}:{p4rt_port}",
        "device_id": config.device_id,
        **listed,
        "target": TOFINO.name,
    }
