"""A controller that waits to become the primary, and says so to whoever asks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading

from controller.errors import StateError
from controller.http.server import Server
from controller.http.standby_app import standby_app
from controller.primacy import BEAT_S, Primacy
from controller.state_file import Standby
from controller.systemd import notify
from hostlib.system.certificate_folder import CertificateFolder
from hostlib.system.interrupts import interrupt_on
from hostlib.system.process import Process

log = logging.getLogger(__name__)


def wait_for_primacy(
    primacy: Primacy,
    listener: socket.socket,
    certificates: CertificateFolder | None,
    http: str,
    told: threading.Event,
) -> bool:
    """Answer as a standby until the primacy is free and claimed; returns False if told to end before that.

    Args:
        listener: it stays open.
        http: where this controller is reached.
        told: set when a signal has told this process to end.
    """

    def primary() -> str:
        holder = primacy.holder()
        return "" if holder is None else holder.http

    ended = threading.Event()
    server = Server(standby_app(primary), certificates, ended, told)
    server.take_signals()
    here = Process.of(os.getpid())
    assert here is not None
    standby = Standby(here, http)
    won = threading.Event()
    if told.is_set():
        return False

    def watch() -> None:
        logged = ""
        while not ended.wait(BEAT_S):
            try:
                before = primacy.holder()
                if primacy.claim(http):
                    won.set()
                    server.end()
                    if before is not None and before.process.alive:
                        # Who is only stopped waits when it comes back, and may be told to end before that.
                        Standby(before.process, before.http).write(primacy.folder)
            except StateError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("%s; trying again", logged)

    watching = threading.Thread(target=watch, name="standby", daemon=True)
    try:
        standby.write(primacy.folder)
        notify(f"READY=1\nSTATUS=standby at {http}; the primary is {primary() or 'gone'}")
        watching.start()
        server.serve_on(listener)
    finally:
        ended.set()
        if watching.is_alive():
            watching.join()
        standby.forget(primacy.folder)
        interrupt_on(signal.SIGTERM, signal.SIGINT)
    return won.is_set() and not told.is_set()
