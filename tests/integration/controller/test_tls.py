"""A controller and a switch that speak TLS: who has no certificate, or no token, is kept out."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from controller.certificate_authority import make_certificates
from controller.commands.start import _require_trust
from controller.errors import ControllerError, SwitchError
from controller.http import punctual_protocol
from controller.http.punctual_protocol import PunctualLoop
from controller.switches.own_entries import OwnEntries
from controller.switches.program import load_artifact
from controller.switches.session import P4RuntimeSession
from controller.topology import single
from emulation.switch.p4runtime.server import SwitchService, serve
from emulation.switch.tls import Tls
from hostlib.errors import JoinError
from hostlib.fabric.job_client import join
from hostlib.system.certificate_folder import CertificateFolder
from tests.conftest import Fabric, controller


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_certificates(made, ["192.0.2.1", "switch.example"])
    return made


def test_keys_are_their_owners_and_an_authority_is_used_again(folder: Path, tmp_path: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    authority, server = ((folder / name).read_bytes() for name in ("ca.pem", "server.pem"))
    make_certificates(folder, [])
    assert (folder / "ca.pem").read_bytes() == authority and (folder / "server.pem").read_bytes() != server
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(ControllerError, match=r"ca\.key are no authority of netfold"):
        make_certificates(tmp_path, [])


def test_https_takes_tokens_and_no_plain_text(
    start_fabric: Callable[..., Fabric], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = start_fabric("--elements", "64", "--ports", "2", "--http", "0.0.0.0:0", "--certificates", folder)
    assert fabric.http.startswith("https://127.0.0.1:")

    def joined() -> None:
        join(fabric.http, "demo", 0, 1, "127.0.0.1", [5000], 5.0, lambda: 0).leave()

    with pytest.raises(JoinError, match="CERTIFICATE_VERIFY_FAILED"):
        joined()
    monkeypatch.setenv("NETFOLD_CONTROLLER_CA", str(folder / "nowhere.pem"))
    with pytest.raises(JoinError, match=r"NETFOLD_CONTROLLER_CA: .*nowhere\.pem cannot be read as a certificate"):
        joined()
    monkeypatch.setenv("NETFOLD_CONTROLLER_CA", str(folder / "ca.pem"))
    with pytest.raises(JoinError, match="joining needs a tenant's token, in NETFOLD_CONTROLLER_TOKEN"):
        joined()
    made = controller("token", "create", "blue", "--jobs", "1", "--state-dir", fabric.state_dir).stdout.strip()
    monkeypatch.setenv("NETFOLD_CONTROLLER_TOKEN", made)
    joined()
    listed = json.loads(controller("token", "list", "--state-dir", fabric.state_dir, "--json").stdout)["tokens"]
    assert [(each["tenant"], each["quota"]["jobs"]) for each in listed] == [("blue", 1)]
    assert controller("token", "revoke", listed[0]["id"], "--state-dir", fabric.state_dir).returncode == 0
    with pytest.raises(JoinError, match="that is no tenant's token"):
        joined()
    assert "jobs       none" in controller("status", "--state-dir", fabric.state_dir).stdout
    with pytest.raises(httpx.HTTPError):
        httpx.get(fabric.http.replace("https:", "http:") + "/v1", timeout=5)


def test_a_handshake_that_does_not_come_in_time_ends_its_connection(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punctual_protocol, "REQUEST_S", 0.5)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    async def ended() -> bytes:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"\x16\x03\x01")  # a handshake begins so
            said = await asyncio.wait_for(reader.read(), 30)
            writer.close()
        return said

    loop = PunctualLoop()
    try:
        assert loop.run_until_complete(ended()) == b""
    finally:
        loop.close()


def test_a_switch_that_speaks_tls_knows_its_controller(folder: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path, [])
    service = SwitchService(1, lambda new, old: None)
    server, port = serve(service, "127.0.0.1:0", Tls.of(CertificateFolder(folder)))
    address = f"127.0.0.1:{port}"
    try:
        session = P4RuntimeSession(address, 1, certificates=CertificateFolder(folder))
        session.push(load_artifact(64), OwnEntries("10.255.255.254"))
        for certificates in (None, CertificateFolder(tmp_path)):
            with pytest.raises(SwitchError, match=f"no switch answers P4Runtime at {address}"):
                P4RuntimeSession(address, 1, 1.0, certificates=certificates)
        # The server's own authority alone is not enough.
        credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
        with grpc.secure_channel(address, credentials) as channel, pytest.raises(grpc.RpcError) as refused:
            p4runtime_pb2_grpc.P4RuntimeStub(channel).Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=3)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            plain.settimeout(5)
            while plain.recv(1000):
                pass
        assert session.up
        session.close()
    finally:
        server.stop(0).wait()
        service.close()


@pytest.mark.parametrize(
    ("http", "p4rt", "says"),
    [
        ("0.0.0.0:0", "127.0.0.1:1", "other machines reach --http 0.0.0.0:0: give --certificates FOLDER"),
        ("127.0.0.1:0", "192.0.2.9:1", "the switch switch at 192.0.2.9:1 is not on this machine: give --certificates"),
    ],
)
def test_what_other_machines_reach_needs_certificates(folder: Path, http: str, p4rt: str, says: str) -> None:
    switches = single(p4rt, 1, "10.255.255.254", {1: "192.0.2.9:4793"})
    with pytest.raises(ControllerError, match=says):
        _require_trust(http, switches, None, False)
    _require_trust(http, switches, None, True)
    _require_trust(http, switches, folder, False)
