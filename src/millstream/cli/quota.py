"""``millstream quota``: how much users, client ids and addresses may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millstream.cli.administrator import administrator, check, data_option
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterEntryData,
    OpData,
)
from millstream.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.client.connection import Connection

_VERSION = 1
_EXACT, _DEFAULT = range(2)
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


def _entity(how: dict[str, Any]) -> list[EntityData]:
    """The entity that the options name. Raises WrongUsage without one."""
    entity: list[EntityData] = []
    for kind, name in (("user", "user"), ("client-id", "client_id"), ("ip", "ip")):
        if how[name] is not None and how[f"default_{name}"]:
            raise WrongUsage(f"give one of --{kind} and --default-{kind}")
        if how[name] is not None or how[f"default_{name}"]:
            entity.append(EntityData(kind, how[name]))
    if not entity:
        raise WrongUsage("name whose quota it is: --user, --client-id, --ip or their defaults")
    return entity


def _shown(entity: list[EntityData]) -> str:
    return ", ".join(
        f"{part.entity_type} {'<default>' if part.entity_name is None else part.entity_name}" for part in entity
    )


def _values(how: dict[str, Any]) -> list[OpData]:
    return [OpData(name, how[name], False) for name in _QUOTAS if how[name] is not None]


def _present(connection: Connection, entity: list[EntityData]) -> EntryData | None:
    """The quotas of exactly this entity."""
    filters = [
        ComponentData(part.entity_type, _DEFAULT if part.entity_name is None else _EXACT, part.entity_name)
        for part in entity
    ]
    found = _described(connection, filters, strict=True)
    return found[0] if found else None


def _described(connection: Connection, filters: list[ComponentData], *, strict: bool) -> list[EntryData]:
    request = DescribeClientQuotasRequest(filters, strict)
    answer = connection.call(request, DescribeClientQuotasResponse, _VERSION)
    check(answer.error_code, answer.error_message, "quotas")
    return answer.entries or []


def _alter(connection: Connection, entity: list[EntityData], changes: list[OpData]) -> None:
    request = AlterClientQuotasRequest([AlterEntryData(entity, changes)])
    for one in connection.call(request, AlterClientQuotasResponse, _VERSION).entries:
        check(one.error_code, one.error_message, f"quota of {_shown(entity)}")


def _set(how: dict[str, Any], data: str | None, bootstrap: str, timeout: float, *, new: bool) -> None:
    entity, changes = _entity(how), _values(how)
    removed = [OpData(name, 0.0, True) for name in how.get("remove", ())]
    if not changes and not removed:
        raise WrongUsage(f"give a quota: {', '.join('--' + name.replace('_', '-') for name in _QUOTAS)}")
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        present = _present(connection, entity)
        if new and present is not None:
            raise CommandFailed(f"{_shown(entity)} has quotas already: change them by 'millstream quota alter'")
        if not new and present is None:
            raise CommandFailed(f"{_shown(entity)} has no quotas: set some by 'millstream quota create'")
        _alter(connection, entity, [*changes, *removed])
    parts = [f"{one.key}={one.value:g}" for one in changes] + [f"{one.key} removed" for one in removed]
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
        _show(_described(connection, [], strict=False), as_json)


@click.command("describe")
@_entity_options
@as_json_option
@_connection_options
def describe(as_json: bool, data: str | None, bootstrap: str, timeout: float, **how: Any) -> None:
    """Show the quotas of exactly this user, client id, pair or address."""
    entity = _entity(how)
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        present = _present(connection, entity)
    if present is None:
        raise CommandFailed(f"{_shown(entity)} has no quotas")
    _show([present], as_json)


@click.command("delete")
@_entity_options
@_connection_options
def delete(data: str | None, bootstrap: str, timeout: float, **how: Any) -> None:
    """Remove all quotas of a user, a client id, both, or an address."""
    entity = _entity(how)
    with administrator(data, bootstrap, timeout, "quotas") as connection:
        present = _present(connection, entity)
        if present is None:
            raise CommandFailed(f"{_shown(entity)} has no quotas")
        _alter(connection, entity, [OpData(one.key, 0.0, True) for one in present.values])
    remark(f"{_shown(entity)}: no quotas")


def _show(entries: list[EntryData], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "entity": {part.entity_type: part.entity_name for part in entry.entity},
                    "quotas": {one.key: one.value for one in entry.values},
                }
                for entry in entries
            ]
        )
        return
    rows = [(_shown(entry.entity), one.key, f"{one.value:g}") for entry in entries for one in entry.values]
    print_table(["ENTITY", "QUOTA", "VALUE"], rows, empty="there are no quotas")
