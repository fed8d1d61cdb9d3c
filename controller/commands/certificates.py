"""`controller certificates`: what TLS needs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hostlib.system.command import Command, json_option
from hostlib.system.extras import require_installed
from hostlib.text import option_types as types


@click.command(cls=Command)
@click.option("--folder", type=types.FOLDER, required=True, help="Where to write them.")
@click.option(
    "--reached-at",
    "hosts",
    type=types.ADDRESS,
    multiple=True,
    help="Name or address of a machine with the controller or a switch. Repeat for more.",
)
@json_option
def certificates(folder: Path, hosts: tuple[str, ...], as_json: bool) -> None:
    """Make certificates for a controller that other machines reach, and for its switches.

    The folder gets an authority (ca.pem), a server's certificate, and a client's, with their keys. If it has an
    authority already, that one signs. Certificates last a year, the authority ten.

    \b
    Example
        controller certificates --folder certificates --reached-at 192.0.2.1
    """
    require_installed("cryptography")
    from controller.certificate_authority import make_certificates

    make_certificates(folder, list(hosts))
    files = [f"{name}.{kind}" for name in ("ca", "server", "client") for kind in ("pem", "key")]
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": files}))
        return
    click.echo(f"{folder}: {', '.join(files)}")


PLACE = 61
COMMANDS = (certificates,)
