"""The HTTP server, on a socket that outlives it: a standby's is followed by a primary's."""

from __future__ import annotations

import resource
import signal
import socket
import threading
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from controller.errors import ControllerError
from controller.http.punctual_protocol import PunctualLoop, PunctualProtocol
from controller.listen_address import parse_listen_address
from controller.systemd import notify
from hostlib.system.certificate_folder import CertificateFolder

MOST_FILES, OWN_FILES = 8192, 512


class Server(uvicorn.Server):
    """A server that says so when it begins to end: it waits for its answers to end, and streams would not.

    Args:
        certificates: for HTTPS; None speaks plain text.
        ending: set when it begins to end.
        told: set when a signal ends it, or came after it.
    """

    def __init__(
        self, app: ASGIApp, certificates: CertificateFolder | None, ending: threading.Event, told: threading.Event
    ) -> None:
        self._ending, self._told = ending, told
        self._signalled = False
        super().__init__(
            uvicorn.Config(
                app,
                http=PunctualProtocol,
                loop=f"{PunctualLoop.__module__}:{PunctualLoop.__name__}",
                proxy_headers=False,  # whoever is on this machine could claim to be any client
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
                limit_concurrency=_most_connections(),
                ssl_certfile=None if certificates is None else certificates.server.certificate,
                ssl_keyfile=None if certificates is None else certificates.server.key,
            )
        )

    def take_signals(self) -> None:
        """Let SIGTERM and SIGINT end this server from now on, and do nothing else: uvicorn raises them again when it
        is done, but cleaning up still has to follow.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)

    def serve_on(self, listener: socket.socket) -> None:
        """Answer until a signal comes, or another thread calls `end`; the socket stays open."""
        self.run(sockets=[listener.dup()])

    def end(self) -> None:
        self._ending.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The next signal may come in the middle of this, and would wait for ever for the lock of an event that is being
        # set: a parent's death sends one for each of its threads.
        if not self._signalled:
            self._signalled = True
            if not self._told.is_set():
                self._told.set()
                notify("STOPPING=1")
            self._ending.set()
        super().handle_exit(sig, frame)


def listen(http: str) -> socket.socket:
    """Listen on ADDRESS:PORT.

    Raises:
        ControllerError: that is no address of this machine, or is in use.
    """
    address, port = parse_listen_address(http)
    # With the protocol named: asyncio sets TCP_NODELAY only then, and answers would wait 40 ms for acknowledgements.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ControllerError(
            f"cannot listen on {http}: {error.strerror}; choose another with --http (port 0 takes any)"
        ) from error
    return listener


def url_of(listener: socket.socket, certificates: CertificateFolder | None) -> str:
    """Where it is reached from this machine."""
    address, port = listener.getsockname()
    own = "127.0.0.1" if address == "0.0.0.0" else address
    return f"{'http' if certificates is None else 'https'}://{own}:{port}"


def _most_connections() -> int:
    """Connections to the HTTP server: as many as there may be, beside what the controller itself has open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - OWN_FILES, OWN_FILES)
