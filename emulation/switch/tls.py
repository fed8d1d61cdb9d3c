"""Certificates of the switch's P4Runtime server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from emulation.errors import PortError
from hostlib.system.certificate_folder import CertificateFolder, Pair


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates of a server.

    Attributes:
        authority: of clients' certificates; None: any.
        clients_prove: only clients with such a certificate may speak.
    """

    own: Pair
    authority: Path | None
    clients_prove: bool = True

    @classmethod
    def of(cls, folder: CertificateFolder) -> Tls:
        """The server's of a folder, to clients of the same authority. Raises HostlibError: a file is missing."""
        return cls(folder.server, folder.authority)

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC. Raises PortError: a file cannot be read."""
        try:
            pair = (self.own.key.read_bytes(), self.own.certificate.read_bytes())
            authority = None if self.authority is None else self.authority.read_bytes()
        except OSError as error:
            raise PortError(f"{error.filename}: {error.strerror}") from error
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=self.clients_prove)
