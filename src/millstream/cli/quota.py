"""``millstream quota``: how much users, client ids and addresses may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millstream.cli.administrator import administrator, data_option
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark
from millstream.client.rights import Entity, entity_of, read_quotas, set_quotas
from millstream.config.forms import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_QUOTAS = {
    "producer_byte_rate": "Bytes a second that clients may write to each broker.",
    "consumer_byte_rate": "Bytes a second that clients may read from each broker.",
    "request_percentage": "CPU time of each broker, in percent of one core.",
    "controller_mutation_rate": "Partitions a second that clients may create or delete.",
    "connection_creation_rate": "Connections a second that an address may open to each broker.",
}


def _entity_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--default-ip", is_flag=True, help="Every address without a quota of its own."),
        click.option("--ip", metavar="ADDRESS", help="An address of clients."),
        click.option("--default-client-id", is_flag=True, help="Every client id without a quota of its own."),
        click.option("--client-id", metavar="ID", help="A client id."),
        click.option("--default-user", is_flag=True, help="Every user without a quota of its own."),
        click.option("--user", metavar="NAME", help="A user, without 'User:'."),
    ):
        command = option(command)
    return command


def _quota_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, what in reversed(_QUOTAS.items()):
        kind = click.FloatRange(0, min_open=True)
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind, metavar="N", help=what)(command)
    return command


def _connection_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (timeout_option, bootstrap_option, data_option):
        command = option(command)
    return command


def _entity(how: dict[str, Any]) -> Entity:
    """The entity that the options name. Raises WrongUsage without one."""
    entity: dict[str, str | None] = {}
    for kind, name in (("user", "user"), ("client-id", "client_id"), ("ip", "ip")):
        if how[name] is not None and how[f"default_{name}"]:
            raise WrongUsage(f"give one of --{kind} and --default-{kind}")
        if how[name] is not None or how[f"default_{name}"]:
            entity[kind] = how[name]
    if not entity:
        raise WrongUsage("name whose quota it is: --user, --client-id, --ip or their defaults")
    return entity_of(entity)


def _shown(entity: Entity) -> str:
    """The user first."""
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in reversed(entity))


def _set(how: dict[str, Any], data: str | None, bootstrap: str, timeout: float, *, new: bool) -> None:
    entity = _entity(how)
    changes: dict[str, float | None] = {name: how[name] for name in _QUOTAS if how[name] is not None}
    changes |= dict.fromkeys(how.get("remove", ()))
    if not changes:
        raise WrongUsage(f"give a quota: {', '.join('--' + name.replace('_', '-') for name in _QUOTAS)}")
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        present = entity in read_quotas(connection)
        if new and present:
            raise CommandFailed(f"{_shown(entity)} has quotas already: change them by 'millstream quota alter'")
        if not new and not present:
            raise CommandFailed(f"{_shown(entity)} has no quotas: set some by 'millstream quota create'")
        set_quotas(connection, entity, changes)
    parts = [f"{name} removed" if value is None else f"{name}={exact(value)}" for name, value in changes.items()]
    remark(f"{_shown(entity)}: {', '.join(parts)}")


@click.command("create")
@_entity_options
@_quota_options
@_connection_options
def create(data: str | None, bootstrap: str, timeout: float, **how: Any) -> None:
    """Set quotas of a user, a client id, both, or an address that has none."""
    _set(how, data, bootstrap, timeout, new=True)


@click.command("alter")
@_entity_options
@_quota_options
@click.option("--remove", multiple=True, type=click.Choice(list(_QUOTAS)), help="A quota to remove.")
@_connection_options
def alter(data: str | None, bootstrap: str, timeout: float, **how: Any) -> None:
    """Change quotas."""
    _set(how, data, bootstrap, timeout, new=False)


@click.command("list")
@as_json_option
@_connection_options
def list_quotas(as_json: bool, data: str | None, bootstrap: str, timeout: float) -> None:
    """List all quotas."""
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        _show(read_quotas(connection), as_json)


@click.command("describe")
@_entity_options
@as_json_option
@_connection_options
def describe(as_json: bool, data: str | None, bootstrap: str, timeout: float, **how: Any) -> None:
    """Show the quotas of exactly this user, client id, pair or address."""
    entity = _entity(how)
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        present = read_quotas(connection).get(entity)
    if present is None:
        raise CommandFailed(f"{_shown(entity)} has no quotas")
    _show({entity: present}, as_json)


@click.command("delete")
@_entity_options
@_connection_options
def delete(data: str | None, bootstrap: str, timeout: float, **how: Any) -> None:
    """Remove all quotas of a user, a client id, both, or an address."""
    entity = _entity(how)
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        present = read_quotas(connection).get(entity)
        if present is None:
            raise CommandFailed(f"{_shown(entity)} has no quotas")
        set_quotas(connection, entity, dict.fromkeys(present))
    remark(f"{_shown(entity)}: no quotas")


def _show(found: Mapping[Entity, Mapping[str, float]], as_json: bool) -> None:
    if as_json:
        print_json([{"entity": dict(entity), "quotas": values} for entity, values in found.items()])
        return
    rows = [(_shown(entity), key, exact(value)) for entity, values in found.items() for key, value in values.items()]
    print_table(["ENTITY", "QUOTA", "VALUE"], rows, empty="there are no quotas")
