"""``millstream acl``: who may do what to which topics, groups and transactional ids, and to the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millstream.cli.administrator import administrator, data_option
from millstream.cli.failure import WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import print_json, print_table, remark
from millstream.client.rights import Acl, add_acls, read_acls, remove_acls
from millstream.model.access import Operation, PatternType, Permission, ResourceType, by_name, name_of
from millstream.wire.messages.delete_acls import DeleteAclsFilter

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPES = by_name((ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID))
_PATTERNS = by_name((PatternType.LITERAL, PatternType.PREFIXED))
_PERMISSIONS = by_name((Permission.DENY, Permission.ALLOW))
_OPERATIONS = by_name(one for one in Operation if Operation.ALL <= one <= Operation.IDEMPOTENT_WRITE)
_CLUSTER = "kafka-cluster"


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


@click.command("create")
@click.argument("principal", metavar="PRINCIPAL", help="Such as User:alice, or User:* for everybody.")
@click.argument("operations", metavar="OPERATION...", nargs=-1, required=True, type=click.Choice(list(_OPERATIONS)))
@_resource_options
@click.option("--prefixed", is_flag=True, help="All resources whose name starts with the name.")
@click.option("--deny", is_flag=True, help="Deny instead of allow.")
@click.option("--host", default="*", metavar="ADDRESS", show_default=True, help="Address of the client.")
@_connection_options
def create(
    principal: str, operations: tuple[str, ...], data: str | None, bootstrap: str, timeout: float, **how: Any
) -> None:
    """Allow or deny a principal to do something."""
    resource_type, name = _resource(how["topic"], how["group"], how["transactional_id"], how["cluster"])
    if name is None:
        raise WrongUsage("name what it is about: --topic, --group, --transactional-id or --cluster")
    pattern = _PATTERNS["prefixed" if how["prefixed"] else "literal"]
    permission = _PERMISSIONS["deny" if how["deny"] else "allow"]
    wanted = [
        Acl(resource_type, pattern, name, principal, how["host"], _OPERATIONS[one], permission) for one in operations
    ]
    with administrator(data, bootstrap, timeout, "access control") as connection:
        add_acls(connection, wanted)
    verb = "denied" if how["deny"] else "allowed"
    remark(f"{verb} {principal}: {', '.join(operations)} on {name_of(_TYPES, resource_type)} '{name}'")


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
    rows = [
        (
            name_of(_TYPES, one.resource_type),
            one.name,
            name_of(_PATTERNS, one.pattern_type),
            one.principal,
            one.host,
            name_of(_PERMISSIONS, one.permission),
            name_of(_OPERATIONS, one.operation),
        )
        for one in found
    ]
    columns = ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "PERMISSION", "OPERATION"]
    if as_json:
        print_json([dict(zip(map(str.lower, columns), row, strict=True)) for row in rows])
    else:
        print_table(columns, rows, empty="there are no such entries: only superusers may do anything")


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
