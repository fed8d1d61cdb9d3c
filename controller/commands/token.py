"""`controller token`: tenants' tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from controller.commands.state_dir import state_dir_option
from controller.jobs.quota import Quota
from controller.state_file import create_folder
from controller.state_store import StateStore
from controller.tenants import Tenants
from hostlib.system.command import Command, json_option
from hostlib.system.command_group import Group
from hostlib.text import option_types as types
from hostlib.text.output import output


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke tenants' tokens.

    It needs no controller that is at work. On an address that other machines reach, a rank needs a tenant's token to join. hostlib reads it from the environment
    variable NETFOLD_CONTROLLER_TOKEN. A tenant's jobs have no more than its quotas together.
    """


@contextmanager
def _tenants(state_dir: Path) -> Iterator[Tenants]:
    create_folder(state_dir)
    with contextlib.closing(StateStore(state_dir)) as store:
        yield Tenants(store)


@token.command(cls=Command)
@click.argument("tenant")
@click.option("--ports", type=types.N, help="Most switch ports of its ranks and servers [default: no limit].")
@click.option("--slots", type=types.N, help="Most slots of its jobs, shared ones aside [default: no limit].")
@click.option("--jobs", type=types.N, help="Most jobs, queued ones aside [default: no limit].")
@state_dir_option
@json_option
def create(tenant: str, ports: int | None, slots: int | None, jobs: int | None, state_dir: Path, as_json: bool) -> None:
    """Make a token for a tenant, and print it: it is not told again.

    The quotas are the tenant's from now on, whichever token its ranks use.

    \b
    Example
        controller token create vision --ports 16 --slots 256 --jobs 4
    """
    with _tenants(state_dir) as tenants:
        made = tenants.create(tenant, Quota(ports, slots, jobs))
    click.echo(json.dumps({"tenant": tenant, "token": made}) if as_json else made)


@token.command(name="list", cls=Command)
@state_dir_option
@json_option
def list_tokens(state_dir: Path, as_json: bool) -> None:
    """Show whose tokens there are, and their quotas."""
    with _tenants(state_dir) as tenants:
        found = tenants.tokens()
    if as_json:
        click.echo(json.dumps({"tokens": [asdict(each) for each in found]}))
        return
    table = Table("token", "tenant", "ports", "slots", "jobs", "made")
    for each in found:
        limits = ("-" if limit is None else str(limit) for limit in asdict(each.quota).values())
        made = datetime.fromtimestamp(each.created_s).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(each.id, escape(each.tenant), *limits, made)
    output().print(table if found else "no tokens")


@token.command(cls=Command)
@click.argument("token_id", metavar="TOKEN")
@state_dir_option
@json_option
def revoke(token_id: str, state_dir: Path, as_json: bool) -> None:
    """Revoke a token by its id, which `controller token list` shows; its jobs go on."""
    with _tenants(state_dir) as tenants:
        tenants.revoke(token_id)
    click.echo(json.dumps({"revoked": token_id}) if as_json else f"token {token_id} is revoked")


PLACE = 60
COMMANDS = (token,)
