"""Who may do what: users, access control entries and quotas, read and changed through Kafka's API as the caller.

``decide`` answers "may X do Y on Z?" from the entries alone, in Kafka's order: a matching DENY refuses; else a matching
ALLOW permits, also one of an operation that implies the wanted one; else it is refused, or, where no entry at all is
about the resource, the brokers' ``allow.everyone.if.no.acl.found`` decides. Superusers may do everything, and no entry
says who they are.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millstream.client.cluster import Cluster, error_of
from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.model.access import Operation, PatternType, Permission, ResourceType, by_name
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterEntryData,
    OpData,
)
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from millstream.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from millstream.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from millstream.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
)
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from millstream.wire.sasl import SCRAM_BY_NAME, SCRAM_BY_NUMBER, salted_password

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

_ANY: Final = 1
_DESCRIBE_ACLS, _CREATE_ACLS, _DELETE_ACLS = 29, 30, 31
_DESCRIBE_QUOTAS, _ALTER_QUOTAS = 48, 49
_DESCRIBE_USERS, _ALTER_USERS = 50, 51
_ITERATIONS: Final = 8192
_SALT_BYTES: Final = 16


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


class Credential(NamedTuple):
    """A SCRAM credential of a user."""

    user: str
    mechanism: str
    iterations: int


def list_rules(cluster: Cluster) -> list[Rule]:
    """All entries, by resource."""

    def ask() -> list[Rule]:
        connection = cluster.any_connection()
        request = DescribeAclsRequest(_ANY, None, _ANY, None, None, _ANY, _ANY)
        answer = connection.call(request, DescribeAclsResponse, connection.version_of(_DESCRIBE_ACLS))
        if answer.error_code:
            raise error_of(answer.error_code, "access control entries", answer.error_message)
        return sorted(
            Rule(
                _name(TYPES, resource.resource_type),
                resource.resource_name,
                _name(PATTERNS, resource.pattern_type),
                entry.principal,
                entry.host,
                _name(OPERATIONS, entry.operation),
                _name(PERMISSIONS, entry.permission_type),
            )
            for resource in answer.resources
            for entry in resource.acls
        )

    return cluster.insist("access control entries", ask)


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
    wanted = AclCreation(*_numbers(rule))
    connection = cluster.any_connection()
    version = connection.version_of(_CREATE_ACLS)
    try:
        (result,) = connection.call(CreateAclsRequest([wanted]), CreateAclsResponse, version).results
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; the entry may have been added") from error
    _refuse(result.error_code, "the entry", result.error_message)


def remove_rule(cluster: Cluster, rule: Rule) -> None:
    """Remove exactly this entry.

    Raises:
        Rejected: there is no such entry, or the caller may not.
    """
    wanted = DeleteAclsFilter(*_numbers(rule))
    connection = cluster.any_connection()
    version = connection.version_of(_DELETE_ACLS)
    try:
        (result,) = connection.call(DeleteAclsRequest([wanted]), DeleteAclsResponse, version).filter_results
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; the entry may have been removed") from error
    _refuse(result.error_code, "the entry", result.error_message)
    if not result.matching_acls:
        raise Rejected("there is no such entry; it may have been removed already")


def list_users(cluster: Cluster) -> list[Credential]:
    """The SCRAM credentials of all users."""

    def ask() -> list[Credential]:
        connection = cluster.any_connection()
        version = connection.version_of(_DESCRIBE_USERS)
        answer = connection.call(
            DescribeUserScramCredentialsRequest(None), DescribeUserScramCredentialsResponse, version
        )
        if answer.error_code:
            raise error_of(answer.error_code, "users", answer.error_message)
        return sorted(
            Credential(one.user, SCRAM_BY_NUMBER[info.mechanism].name, info.iterations)
            for one in answer.results
            for info in one.credential_infos
            if info.mechanism in SCRAM_BY_NUMBER
        )

    return cluster.insist("users", ask)


def set_password(cluster: Cluster, user: str, mechanism: str, password: str) -> None:
    """Create a user or give it another password. The password is hashed here."""
    if mechanism not in SCRAM_BY_NAME:
        raise Rejected(f"{mechanism!r} is no SCRAM mechanism")
    if not user or not password:
        raise Rejected("a user needs a name and a password")
    scram, salt = SCRAM_BY_NAME[mechanism], secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(scram, password, salt, _ITERATIONS)
    wanted = ScramCredentialUpsertion(user, scram.number, _ITERATIONS, salt, salted)
    _alter_user(cluster, user, AlterUserScramCredentialsRequest([], [wanted]))


def remove_credential(cluster: Cluster, user: str, mechanism: str) -> None:
    """Remove a way in which a user logs in; its open connections stay."""
    if mechanism not in SCRAM_BY_NAME:
        raise Rejected(f"{mechanism!r} is no SCRAM mechanism")
    gone = ScramCredentialDeletion(user, SCRAM_BY_NAME[mechanism].number)
    _alter_user(cluster, user, AlterUserScramCredentialsRequest([gone], []))


def list_quotas(cluster: Cluster) -> list[EntryData]:
    """All quotas."""

    def ask() -> list[EntryData]:
        connection = cluster.any_connection()
        version = connection.version_of(_DESCRIBE_QUOTAS)
        answer = connection.call(DescribeClientQuotasRequest([], False), DescribeClientQuotasResponse, version)
        if answer.error_code:
            raise error_of(answer.error_code, "quotas", answer.error_message)
        return answer.entries or []

    return cluster.insist("quotas", ask)


def set_quota(cluster: Cluster, entity: Sequence[tuple[str, str | None]], key: str, value: float | None) -> None:
    """Set a quota of an entity (kind and name, None for the default), or remove it."""
    parts = [EntityData(kind, name) for kind, name in entity]
    change = OpData(key, value or 0.0, value is None)
    connection = cluster.any_connection()
    version = connection.version_of(_ALTER_QUOTAS)
    request = AlterClientQuotasRequest([AlterEntryData(parts, [change])])
    try:
        (result,) = connection.call(request, AlterClientQuotasResponse, version).entries
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; the quota may have been changed") from error
    _refuse(result.error_code, "the quota", result.error_message)


def _alter_user(cluster: Cluster, user: str, request: AlterUserScramCredentialsRequest) -> None:
    connection = cluster.any_connection()
    version = connection.version_of(_ALTER_USERS)
    try:
        (result,) = connection.call(request, AlterUserScramCredentialsResponse, version).results
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; user {user} may have been changed") from error
    _refuse(result.error_code, f"user {user}", result.error_message)


def _covers(rule: Rule, name: str) -> bool:
    if rule.pattern == "prefixed":
        return name.startswith(rule.name)
    return rule.pattern == "literal" and rule.name in (name, "*")


def _refuse(code: int, what: str, detail: str | None) -> None:
    if code:
        error = error_of(code, what, detail)
        raise Rejected(error.message, error.code)


def _name(table: Mapping[str, int], number: int) -> str:
    return next((name for name, found in table.items() if found == number), str(number))


def _numbers(rule: Rule) -> tuple[int, str, int, str, str, int, int]:
    """The fields of an entry, in the order of Kafka's requests."""
    return (
        _number(TYPES, rule.resource_type, "resource"),
        rule.name,
        _number(PATTERNS, rule.pattern, "pattern"),
        rule.principal,
        rule.host,
        _number(OPERATIONS, rule.operation, "operation"),
        _number(PERMISSIONS, rule.permission, "permission"),
    )


def _number(table: Mapping[str, int], name: str, what: str) -> int:
    if name not in table:
        raise Rejected(f"{name!r} is no {what}: expected one of {', '.join(table)}")
    return table[name]
