"""Users, access control entries and quotas of a cluster: read, and changed one at a time, over one connection.

The one place where clients of ours ask for them; commands, files of ``apply``, backups, the console and the HTTP port
give the values their own forms. Everything goes over Kafka's API, so the broker's checks, the rights of the login and
the audit apply. A password is hashed here: it does not leave this process.

A reading raises the error of the broker. A change that is refused raises ``Rejected`` and has changed nothing; after a
lost connection it raises ``OutcomeUnknown``, and is not sent again.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from millstream.client.cluster import error_of, once, refuse
from millstream.client.connection import Connection
from millstream.errors import Rejected
from millstream.model.access import Operation, PatternType, Permission, ResourceType
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
)
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from millstream.wire.sasl import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_BY_NAME, SCRAM_BY_NUMBER, salted_password

ITERATIONS: Final = 8192
"""Rounds of the hash of a new password."""

_SALT_BYTES: Final = 16

Entity = tuple[tuple[str, str | None], ...]
"""Whose quota: (kind, name) for each part, in the order of the kinds. The name None is the default of the kind."""


class Acl(NamedTuple):
    """An access control entry, in Kafka's numbers. In the order of the resources."""

    resource_type: int
    pattern_type: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int


class Credential(NamedTuple):
    """A way in which a user logs in by SCRAM."""

    user: str
    mechanism: str
    iterations: int


def read_acls(
    connection: Connection,
    resource_type: int = ResourceType.ANY,
    name: str | None = None,
    principal: str | None = None,
    pattern_type: int = PatternType.ANY,
) -> list[Acl]:
    """All entries, or those of a type of resource, of a name, of a principal; in order. The pattern type ``MATCH``
    also gives those of the name's prefixes and of all resources.

    Raises:
        Rejected: SECURITY_DISABLED where access is not controlled, among others.
    """
    request = DescribeAclsRequest(
        resource_type, name, pattern_type, principal, None, int(Operation.ANY), int(Permission.ANY)
    )
    answer = connection.ask(request, DescribeAclsResponse)
    if answer.error_code:
        raise error_of(answer.error_code, "access control entries", answer.error_message)
    return sorted(
        Acl(
            each.resource_type,
            each.pattern_type,
            each.resource_name,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for each in answer.resources
        for one in each.acls
    )


def read_users(connection: Connection, user: str | None = None) -> list[Credential]:
    """The credentials of all users, or of one, in order. Mechanisms that are not known here are left out."""
    request = DescribeUserScramCredentialsRequest(None if user is None else [UserName(user)])
    answer = connection.ask(request, DescribeUserScramCredentialsResponse)
    if answer.error_code:
        raise error_of(answer.error_code, "users", answer.error_message)
    return sorted(
        Credential(one.user, SCRAM_BY_NUMBER[info.mechanism].name, info.iterations)
        for one in answer.results
        if not one.error_code
        for info in one.credential_infos
        if info.mechanism in SCRAM_BY_NUMBER
    )


def read_quotas(connection: Connection) -> dict[Entity, dict[str, float]]:
    """All quotas."""
    answer = connection.ask(DescribeClientQuotasRequest([], strict=False), DescribeClientQuotasResponse)
    if answer.error_code:
        raise error_of(answer.error_code, "quotas", answer.error_message)
    return {
        entity_of({part.entity_type: part.entity_name for part in entry.entity}): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries or []
    }


def entity_of(parts: Mapping[Any, str | None]) -> Entity:
    """An entity of its parts."""
    return tuple(sorted(parts.items(), key=lambda part: part[0]))


def add_acls(connection: Connection, acls: Iterable[Acl]) -> None:
    """Add entries; one that is there already stays. Those before a refused one are added."""
    request = CreateAclsRequest(
        [
            AclCreation(
                acl.resource_type,
                acl.name,
                acl.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission,
            )
            for acl in acls
        ]
    )
    answer = once(lambda: connection.ask(request, CreateAclsResponse, lowest=1), "the entry may have been added")
    for result in answer.results:
        refuse(result.error_code, "access control entries", result.error_message)


def remove_acl(connection: Connection, acl: Acl) -> bool:
    """Remove exactly this entry. False: there is no such entry."""
    exactly = DeleteAclsFilter(
        acl.resource_type, acl.name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission
    )
    return bool(remove_acls(connection, [exactly]))


def remove_acls(connection: Connection, filters: list[DeleteAclsFilter]) -> int:
    """Remove the entries that pass one of the filters; their number."""
    request = DeleteAclsRequest(filters)
    answer = once(lambda: connection.ask(request, DeleteAclsResponse), "the entry may have been removed")
    for result in answer.filter_results:
        refuse(result.error_code, "access control entries", result.error_message)
    return sum(len(result.matching_acls) for result in answer.filter_results)


def check_credential(user: str, mechanism: str, password: str, iterations: int = ITERATIONS) -> None:
    """Raises Rejected for what ``set_password`` refuses before it sends anything."""
    _number(mechanism)
    if not user or not password:
        raise Rejected("a user needs a name and a password")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise Rejected(f"{iterations} iterations: expected {ITERATIONS_MIN} to {ITERATIONS_MAX}")


def set_password(
    connection: Connection, user: str, mechanism: str, password: str, iterations: int = ITERATIONS
) -> None:
    """Create a user, or give it another password."""
    check_credential(user, mechanism, password, iterations)
    scram, salt = SCRAM_BY_NAME[mechanism], secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(scram, password, salt, iterations)
    made = ScramCredentialUpsertion(user, scram.number, iterations, salt, salted)
    _alter_user(connection, user, AlterUserScramCredentialsRequest([], [made]))


def remove_credential(connection: Connection, user: str, mechanism: str) -> None:
    """Remove a way in which a user logs in; its open connections stay.

    Raises:
        Rejected: RESOURCE_NOT_FOUND, among others.
    """
    deletion = ScramCredentialDeletion(user, _number(mechanism))
    _alter_user(connection, user, AlterUserScramCredentialsRequest([deletion], []))


def set_quotas(
    connection: Connection,
    entity: Sequence[tuple[str, str | None]],
    values: Mapping[str, float | None],
    *,
    check: bool = False,
) -> None:
    """Set quotas of an entity, and remove those that are None. ``check`` has the broker only say whether it would."""
    parts = [EntityData(kind, name) for kind, name in entity]
    changes = [OpData(key, value or 0.0, value is None) for key, value in values.items()]
    request = AlterClientQuotasRequest([AlterEntryData(parts, changes)], check)
    answer = once(lambda: connection.ask(request, AlterClientQuotasResponse), "the quota may be changed")
    refuse(answer.entries[0].error_code, "the quota", answer.entries[0].error_message)


def _alter_user(connection: Connection, user: str, request: AlterUserScramCredentialsRequest) -> None:
    answer = once(
        lambda: connection.ask(request, AlterUserScramCredentialsResponse),
        f"user {user} may have been changed",
    )
    refuse(answer.results[0].error_code, f"user {user}", answer.results[0].error_message)


def _number(mechanism: str) -> int:
    if mechanism not in SCRAM_BY_NAME:
        raise Rejected(f"{mechanism!r} is no SCRAM mechanism: expected {' or '.join(SCRAM_BY_NAME)}")
    return SCRAM_BY_NAME[mechanism].number
