"""A folder of certificates, as `controller certificates` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from hostlib.errors import HostlibError


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class CertificateFolder:
    """ca.pem, and the server's or the client's certificate with its key.

    Raises:
        HostlibError: a file is missing.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        return self._there("ca.pem")

    @property
    def server(self) -> Pair:
        return Pair(self._there("server.pem"), self._there("server.key"))

    @property
    def client(self) -> Pair:
        return Pair(self._there("client.pem"), self._there("client.key"))

    def _there(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise HostlibError(f"there is no {path}: controller certificates --folder {self.folder} makes it")
        return path


def is_local(address: str) -> bool:
    """Whether only this machine reaches an address: ADDRESS:PORT, ADDRESS, or unix:PATH."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0] if ":" in address else address
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
