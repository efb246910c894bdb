"""Who may do what: users, access control entries and quotas, read and changed through Kafka's API as the caller.

``decide`` answers "may X do Y on Z?" from the entries alone, in Kafka's order: a matching DENY refuses; else a matching
ALLOW permits, also one of an operation that implies the wanted one; else it is refused, or, where no entry at all is
about the resource, the brokers' ``allow.everyone.if.no.acl.found`` decides. Superusers may do everything, and no entry
says who they are.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.client import rights
from millstream.client.cluster import Cluster
from millstream.client.rights import Acl, Credential, Entity
from millstream.errors import Rejected
from millstream.model.access import Operation, PatternType, Permission, ResourceType, by_name, name_of

TYPES: Final = by_name(one for one in ResourceType if one is not ResourceType.ANY)
PATTERNS: Final = by_name((PatternType.LITERAL, PatternType.PREFIXED))
PERMISSIONS: Final = by_name((Permission.DENY, Permission.ALLOW))
OPERATIONS: Final = by_name(one for one in Operation if one is not Operation.ANY)
IMPLIED_BY: Final = {"describe": ("read", "write", "delete", "alter"), "describe-configs": ("alter-configs",)}
"""Operations whose ALLOW allows another one, too (KIP-146 and Kafka's authorizer)."""
QUOTAS: Final = {
    "producer_byte_rate": "bytes a second written to each broker",
    "consumer_byte_rate": "bytes a second read from each broker",
    "request_percentage": "percent of a core of each broker",
    "controller_mutation_rate": "partitions a second created or deleted",
    "connection_creation_rate": "connections a second that an address opens to each broker",
}


class Rule(NamedTuple):
    """An access control entry, its numbers as names; numbers that have none here stay digits."""

    resource_type: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


RULE_FIELDS: Final = Rule._fields


class Decision(NamedTuple):
    """``allowed`` is None where no entry is about the resource. ``rules`` are those that decide."""

    allowed: bool | None
    rules: list[Rule]


def list_rules(cluster: Cluster) -> list[Rule]:
    """All entries, by resource."""
    found = cluster.insist("access control entries", lambda: rights.read_acls(cluster.any_connection()))
    return sorted(
        Rule(
            name_of(TYPES, one.resource_type),
            one.name,
            name_of(PATTERNS, one.pattern_type),
            one.principal,
            one.host,
            name_of(OPERATIONS, one.operation),
            name_of(PERMISSIONS, one.permission),
        )
        for one in found
    )


def decide(rules: Sequence[Rule], principal: str, host: str, operation: str, resource_type: str, name: str) -> Decision:
    """Whether the principal may do that, by which entries."""
    about = [rule for rule in rules if rule.resource_type == resource_type and _covers(rule, name)]
    mine = [rule for rule in about if rule.principal in (principal, "User:*") and rule.host in (host, "*")]
    denied = [rule for rule in mine if rule.permission == "deny" and rule.operation in (operation, "all")]
    if denied:
        return Decision(False, denied)
    enough = (operation, "all", *IMPLIED_BY.get(operation, ()))
    allowed = [rule for rule in mine if rule.permission == "allow" and rule.operation in enough]
    return Decision(bool(allowed) if about else None, allowed)


def add_rule(cluster: Cluster, rule: Rule) -> None:
    """Add an entry; one that is there already stays."""
    rights.add_acls(cluster.any_connection(), [_acl(rule)])


def remove_rule(cluster: Cluster, rule: Rule) -> None:
    """Remove exactly this entry.

    Raises:
        Rejected: there is no such entry, or the caller may not.
    """
    if not rights.remove_acl(cluster.any_connection(), _acl(rule)):
        raise Rejected("there is no such entry; it may have been removed already")


def list_users(cluster: Cluster) -> list[Credential]:
    """The SCRAM credentials of all users."""
    return cluster.insist("users", lambda: rights.read_users(cluster.any_connection()))


def set_password(cluster: Cluster, user: str, mechanism: str, password: str) -> None:
    """Create a user or give it another password. The password is hashed here."""
    rights.set_password(cluster.any_connection(), user, mechanism, password)


def remove_credential(cluster: Cluster, user: str, mechanism: str) -> None:
    """Remove a way in which a user logs in; its open connections stay."""
    rights.remove_credential(cluster.any_connection(), user, mechanism)


def list_quotas(cluster: Cluster) -> list[tuple[Entity, dict[str, float]]]:
    """All quotas."""
    return list(cluster.insist("quotas", lambda: rights.read_quotas(cluster.any_connection())).items())


def set_quota(cluster: Cluster, entity: Sequence[tuple[str, str | None]], key: str, value: float | None) -> None:
    """Set a quota of an entity (kind and name, None for the default), or remove it."""
    rights.set_quotas(cluster.any_connection(), entity, {key: value})


def _covers(rule: Rule, name: str) -> bool:
    if rule.pattern == "prefixed":
        return name.startswith(rule.name)
    return rule.pattern == "literal" and rule.name in (name, "*")


def _acl(rule: Rule) -> Acl:
    """An entry in Kafka's numbers."""
    return Acl(
        _number(TYPES, rule.resource_type, "resource"),
        _number(PATTERNS, rule.pattern, "pattern"),
        rule.name,
        rule.principal,
        rule.host,
        _number(OPERATIONS, rule.operation, "operation"),
        _number(PERMISSIONS, rule.permission, "permission"),
    )


def _number(table: Mapping[str, int], name: str, what: str) -> int:
    if name not in table:
        raise Rejected(f"{name!r} is no {what}: expected one of {', '.join(table)}")
    return table[name]
