"""``millstream acl``: who may do what to which topics, groups and transactional ids, and to the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millstream.cli.administrator import administrator, data_option
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, plain_line, print_json, print_table, remark
from millstream.client.rights import Acl, add_acls, read_acls, remove_acl, remove_acls
from millstream.core.access.entry import EVERYONE, OPERATIONS_OF, AclEntry
from millstream.core.access.rules import Rules
from millstream.model.access import Operation, PatternType, Permission, ResourceType, by_name, name_of
from millstream.wire.messages.delete_acls import DeleteAclsFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TYPES = by_name((ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID))
_PATTERNS = by_name((PatternType.LITERAL, PatternType.PREFIXED))
_PERMISSIONS = by_name((Permission.DENY, Permission.ALLOW))
_OPERATIONS = by_name(one for one in Operation if Operation.ALL <= one <= Operation.IDEMPOTENT_WRITE)
_CLUSTER = "kafka-cluster"
_COLUMNS = ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "PERMISSION", "OPERATION"]


def _resource_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option("--transactional-id", metavar="ID", help="A transactional id, or '*' for all."),
        click.option("--group", metavar="NAME", help="A consumer group, or '*' for all."),
        click.option("--topic", metavar="NAME", help="A topic, or '*' for all."),
    ):
        command = option(command)
    return command


def _connection_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (timeout_option, bootstrap_option, data_option):
        command = option(command)
    return command


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, cluster: bool
) -> tuple[int, str | None]:
    """Type and name of the one resource that is given; (any, None) for none."""
    given = [
        (_TYPES[kind], name)
        for kind, name in (
            ("topic", topic),
            ("group", group),
            ("transactional-id", transactional_id),
            ("cluster", _CLUSTER if cluster else None),
        )
        if name is not None
    ]
    if len(given) > 1:
        raise WrongUsage("give one of --topic, --group, --transactional-id and --cluster")
    return given[0] if given else (ResourceType.ANY, None)


def _entry_options(command: Callable[..., None]) -> Callable[..., None]:
    """What one or several entries say: to whom, which operations, and of which resource."""
    for option in (
        click.option("--host", default="*", metavar="ADDRESS", show_default=True, help="Address of the client."),
        click.option("--deny", is_flag=True, help="Deny instead of allow."),
        click.option("--prefixed", is_flag=True, help="All resources whose name starts with the name."),
        _resource_options,
        click.argument(
            "operations", metavar="OPERATION...", nargs=-1, required=True, type=click.Choice(list(_OPERATIONS))
        ),
        click.argument("principal", metavar="PRINCIPAL", help="Such as User:alice, or User:* for everybody."),
    ):
        command = option(command)
    return command


def _entries(principal: str, operations: tuple[str, ...], how: dict[str, Any]) -> tuple[list[Acl], str]:
    """The entries that ``_entry_options`` name, and what they are about, for people."""
    resource_type, name = _resource(how["topic"], how["group"], how["transactional_id"], how["cluster"])
    if name is None:
        raise WrongUsage("name what it is about: --topic, --group, --transactional-id or --cluster")
    pattern = _PATTERNS["prefixed" if how["prefixed"] else "literal"]
    permission = _PERMISSIONS["deny" if how["deny"] else "allow"]
    entries = [
        Acl(resource_type, pattern, name, principal, how["host"], _OPERATIONS[one], permission) for one in operations
    ]
    return entries, f"{name_of(_TYPES, resource_type)} '{name}'"


@click.command("create")
@_entry_options
@_connection_options
def create(
    principal: str, operations: tuple[str, ...], data: str | None, bootstrap: str, timeout: float, **how: Any
) -> None:
    """Allow or deny a principal to do something."""
    wanted, about = _entries(principal, operations, how)
    with administrator(data, bootstrap, timeout, "access control") as connection:
        add_acls(connection, wanted)
    verb = "denied" if how["deny"] else "allowed"
    remark(f"{verb} {principal}: {', '.join(operations)} on {about}")


@click.command("alter")
@_entry_options
@_connection_options
def alter(
    principal: str, operations: tuple[str, ...], data: str | None, bootstrap: str, timeout: float, **how: Any
) -> None:
    """Make these the operations that a principal is allowed (or denied) there: add those it lacks, delete the others.

    Entries of other patterns, hosts and permissions stay. An entry itself cannot be changed.
    """
    wanted, about = _entries(principal, operations, how)
    first = wanted[0]
    with administrator(data, bootstrap, timeout, "access control") as connection:
        found = read_acls(connection, first.resource_type, first.name, principal, first.pattern_type)
        other = [one for one in found if one not in wanted and one._replace(operation=first.operation) == first]
        add_acls(connection, [one for one in wanted if one not in found])
        for one in other:
            remove_acl(connection, one)
    verb = "denied" if how["deny"] else "allowed"
    gone = ", ".join(name_of(_OPERATIONS, one.operation) for one in other)
    remark(f"{verb} {principal}: {', '.join(operations)} on {about}{f'; no longer: {gone}' if gone else ''}")


@click.command("list")
@click.option("--principal", metavar="PRINCIPAL", help="Only entries of this principal.")
@_resource_options
@as_json_option
@_connection_options
def list_acls(
    principal: str | None, as_json: bool, data: str | None, bootstrap: str, timeout: float, **how: Any
) -> None:
    """List access control entries; of a resource, also those of its prefixes and of all resources."""
    resource_type, name = _resource(how["topic"], how["group"], how["transactional_id"], how["cluster"])
    pattern = PatternType.ANY if name is None else PatternType.MATCH
    with administrator(data, bootstrap, timeout, "access control") as connection:
        found = read_acls(connection, resource_type, name, principal, pattern)
    if as_json:
        print_json(_documents(found))
    else:
        print_table(_COLUMNS, map(_row, found), empty="there are no such entries: only superusers may do anything")


@click.command("describe")
@click.argument("principal", metavar="PRINCIPAL", help="Such as User:alice.")
@_resource_options
@click.option("--host", default="*", metavar="ADDRESS", show_default=True, help="Address of the client.")
@as_json_option
@_connection_options
def describe(
    principal: str, host: str, as_json: bool, data: str | None, bootstrap: str, timeout: float, **how: Any
) -> None:
    """Show the entries that decide for a principal, those of User:* among them, and what it may do with a resource.

    Without --host, entries of particular addresses are shown, but not counted. Superusers may do everything.
    """
    resource_type, name = _resource(how["topic"], how["group"], how["transactional_id"], how["cluster"])
    pattern = PatternType.ANY if name is None else PatternType.MATCH
    with administrator(data, bootstrap, timeout, "access control") as connection:
        every = read_acls(connection, resource_type, name, None, pattern)
    mine = [one for one in every if one.principal in (principal, EVERYONE) and (host == "*" or one.host in ("*", host))]
    verdict = None if name is None else _verdict(every, principal, host, ResourceType(resource_type), name)
    if as_json:
        print_json({"principal": principal, "entries": _documents(mine), "may": verdict})
        return
    print_table(_COLUMNS, map(_row, mine), empty=f"there are no such entries of {principal} or {EVERYONE}")
    if verdict is not None and not every:
        remark("no entry is about it: only superusers may do anything, unless allow.everyone.if.no.acl.found=true")
    elif verdict is not None:
        emit(plain_line(f"{principal} may: {', '.join(verdict) or 'nothing'}") + "\n")


def _verdict(entries: Iterable[Acl], principal: str, host: str, resource_type: ResourceType, name: str) -> list[str]:
    """The operations that brokers permit by these entries."""
    rules = Rules()
    for one in entries:
        rules.add(AclEntry(*one))
    return [
        name_of(_OPERATIONS, operation)
        for operation in OPERATIONS_OF[resource_type]
        if rules.decide(principal, host, operation, resource_type, name)
    ]


def _row(one: Acl) -> tuple[str, ...]:
    return (
        name_of(_TYPES, one.resource_type),
        one.name,
        name_of(_PATTERNS, one.pattern_type),
        one.principal,
        one.host,
        name_of(_PERMISSIONS, one.permission),
        name_of(_OPERATIONS, one.operation),
    )


def _documents(entries: Iterable[Acl]) -> list[dict[str, str]]:
    return [dict(zip(map(str.lower, _COLUMNS), _row(one), strict=True)) for one in entries]


@click.command("delete")
@click.argument("principal", metavar="PRINCIPAL", help="Such as User:alice.")
@click.argument("operations", metavar="[OPERATION...]", nargs=-1, type=click.Choice(list(_OPERATIONS)))
@_resource_options
@_connection_options
def delete(
    principal: str, operations: tuple[str, ...], data: str | None, bootstrap: str, timeout: float, **how: Any
) -> None:
    """Delete entries of a principal: all, or those of a resource or of some operations."""
    resource_type, name = _resource(how["topic"], how["group"], how["transactional_id"], how["cluster"])
    filters = [
        DeleteAclsFilter(resource_type, name, PatternType.ANY, principal, None, number, Permission.ANY)
        for number in [_OPERATIONS[one] for one in operations] or [Operation.ANY]
    ]
    with administrator(data, bootstrap, timeout, "access control") as connection:
        deleted = remove_acls(connection, filters)
    remark(f"deleted {deleted} {'entry' if deleted == 1 else 'entries'} of {principal}")
