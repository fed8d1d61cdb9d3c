"""A controller that waits to become the primary, and says so to whoever asks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time

from controller.errors import StateError
from controller.http.server import Server
from controller.http.standby_app import standby_app
from controller.primacy import BEAT_S, Primacy
from controller.repeated_warning import RepeatedWarning
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
    """Answer as a standby until the primacy is free and claimed; returns False if told to end, which may be just after
    that.

    Args:
        listener: it stays open.
        http: where this controller is reached.
        told: set when a signal has told this process to end.
    """

    ended = threading.Event()
    server = Server(standby_app(primacy.primary), certificates, ended, told)
    server.take_signals()
    here = Process.of(os.getpid())
    assert here is not None
    standby = Standby(here, http)
    won = threading.Event()
    if told.is_set():
        return False

    def watch() -> None:
        warning = RepeatedWarning(log)
        while not (told.is_set() or ended.wait(BEAT_S)):
            try:
                before = primacy.holder()
                if primacy.claim(http):
                    won.set()
                    server.end()
                    if before is not None and before.process.alive:
                        # Who is only stopped waits when it comes back, and may be told to end before that.
                        Standby(before.process, before.http).write(primacy.folder)
            except StateError as error:
                warning(error)

    watching = threading.Thread(target=watch, name="standby", daemon=True)
    try:
        standby.write(primacy.folder)
        notify(f"READY=1\nSTATUS=standby at {http}; the primary is {primacy.primary() or 'gone'}")
        watching.start()
        server.serve_on(listener)
    finally:
        ended.set()
        if watching.is_alive():
            watching.join()
        standby.forget(primacy.folder)
        interrupt_on(signal.SIGTERM, signal.SIGINT)
    return won.is_set() and not told.is_set()


def hand_over(primacy: Primacy, http: str, within_s: float) -> bool:
    """Give the primacy up to a standby; returns whether one has taken it.

    If none does - all have been told to end, too, or are stopped - this process is the primary again.

    Args:
        http: where this process was reached.

    Raises:
        StateError: the database cannot be read or written.
    """
    primacy.release()
    give_up = time.monotonic() + within_s
    while Standby.all(primacy.folder) and time.monotonic() < give_up:
        if primacy.holder() is not None:
            return True
        time.sleep(BEAT_S / 5)
    return not primacy.claim(http)
