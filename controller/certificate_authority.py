"""Certificates for the controller's HTTP and P4Runtime: an authority of one's own, a server's and a client's."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.errors import ControllerError

AUTHORITY_DAYS, DAYS = 3650, 365
ALWAYS = ("localhost", "127.0.0.1")  # what the controller's own commands use


def make_certificates(folder: Path, hosts: list[str]) -> None:
    """Write ca.pem, server.pem and client.pem with their keys; an authority that is there is used again.

    Args:
        hosts: names and addresses of the server, beside this machine's own.

    Raises:
        ControllerError: the folder cannot be written, or its authority cannot be read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority, key = _authority(folder)
        names = [_name(host) for host in dict.fromkeys((*ALWAYS, *hosts))]
        for who, usage, alternatives in (
            ("server", ExtendedKeyUsageOID.SERVER_AUTH, names),
            ("client", ExtendedKeyUsageOID.CLIENT_AUTH, [x509.DNSName("controller")]),
        ):
            own = ec.generate_private_key(ec.SECP256R1())
            certificate = (
                _builder(f"netfold {who}", authority.subject, own.public_key(), DAYS)
                .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
                .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
                .sign(key, hashes.SHA256())
            )
            _write(folder / f"{who}.pem", certificate.public_bytes(serialization.Encoding.PEM))
            _write(folder / f"{who}.key", _pem(own))
    except OSError as error:
        raise ControllerError(f"{error.filename or folder} cannot be written: {error.strerror}") from error


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
    if key_file.exists():
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise ControllerError(f"{certificate_file} and {key_file} are no authority of netfold: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ControllerError(f"{key_file} is no key of netfold's: it is not of an elliptic curve")
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "netfold authority")])
    certificate = (
        _builder("netfold authority", subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_file, _pem(key))
    _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # other machines' clocks, and one that is set back
        .not_valid_after(now + timedelta(days=days))
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)
