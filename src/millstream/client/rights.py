"""Users, access control entries and quotas of a cluster: read, and changed one at a time, over one connection.

The one place where clients of ours ask for them; commands, files of ``apply``, backups, the console and the HTTP port
give the values their own forms. Everything goes over Kafka's API, so the broker's checks, the rights of the login and
the audit apply. A password is hashed here: it does not leave this process.

A reading raises the error of the broker. A change that is refused raises ``Rejected`` and has changed nothing; after a
lost connection it raises ``OutcomeUnknown``, and is not sent again.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from millstream.client.cluster import error_of
from millstream.client.connection import Connection
from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.model.error_code import ErrorCode
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
)
from millstream.wire.sasl import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_BY_NAME, SCRAM_BY_NUMBER, salted_password

ITERATIONS: Final = 8192
"""Rounds of the hash of a new password."""

_DESCRIBE_ACLS, _CREATE_ACLS, _DELETE_ACLS = 29, 30, 31
_DESCRIBE_QUOTAS, _ALTER_QUOTAS = 48, 49
_DESCRIBE_USERS, _ALTER_USERS = 50, 51
_SALT_BYTES: Final = 16

Entity = tuple[tuple[str, str | None], ...]
"""Whose quota: (kind, name) for each part, in the order of the kinds. The name None is the default of the kind."""

_T = TypeVar("_T")


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


def read_acls(connection: Connection, resource_type: int = ResourceType.ANY, name: str | None = None) -> list[Acl]:
    """All entries, or those of a type of resource, or of one name; in order.

    Raises:
        Rejected: SECURITY_DISABLED where access is not controlled, among others.
    """
    request = DescribeAclsRequest(
        resource_type, name, PatternType.ANY, None, None, int(Operation.ANY), int(Permission.ANY)
    )
    answer = connection.call(request, DescribeAclsResponse, connection.version_of(_DESCRIBE_ACLS))
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


def read_users(connection: Connection) -> list[Credential]:
    """The credentials of all users, in order. Mechanisms that are not known here are left out."""
    version = connection.version_of(_DESCRIBE_USERS)
    answer = connection.call(DescribeUserScramCredentialsRequest(None), DescribeUserScramCredentialsResponse, version)
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
    version = connection.version_of(_DESCRIBE_QUOTAS)
    answer = connection.call(DescribeClientQuotasRequest([], strict=False), DescribeClientQuotasResponse, version)
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


def add_acl(connection: Connection, acl: Acl) -> None:
    """Add an entry; one that is there already stays."""
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
        ]
    )
    version = connection.version_of(_CREATE_ACLS)
    answer = _once(lambda: connection.call(request, CreateAclsResponse, version), "the entry may have been added")
    _refuse(answer.results[0].error_code, "the entry", answer.results[0].error_message)


def remove_acl(connection: Connection, acl: Acl) -> bool:
    """Remove exactly this entry. False: there is no such entry."""
    request = DeleteAclsRequest(
        [
            DeleteAclsFilter(
                acl.resource_type,
                acl.name,
                acl.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission,
            )
        ]
    )
    version = connection.version_of(_DELETE_ACLS)
    answer = _once(lambda: connection.call(request, DeleteAclsResponse, version), "the entry may have been removed")
    (result,) = answer.filter_results
    _refuse(result.error_code, "the entry", result.error_message)
    return bool(result.matching_acls)


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
    version = connection.version_of(_ALTER_QUOTAS)
    answer = _once(lambda: connection.call(request, AlterClientQuotasResponse, version), "the quota may be changed")
    _refuse(answer.entries[0].error_code, "the quota", answer.entries[0].error_message)


def _alter_user(connection: Connection, user: str, request: AlterUserScramCredentialsRequest) -> None:
    version = connection.version_of(_ALTER_USERS)
    answer = _once(
        lambda: connection.call(request, AlterUserScramCredentialsResponse, version),
        f"user {user} may have been changed",
    )
    _refuse(answer.results[0].error_code, f"user {user}", answer.results[0].error_message)


def _number(mechanism: str) -> int:
    if mechanism not in SCRAM_BY_NAME:
        raise Rejected(f"{mechanism!r} is no SCRAM mechanism: expected {' or '.join(SCRAM_BY_NAME)}")
    return SCRAM_BY_NAME[mechanism].number


def _once(change: Callable[[], _T], doubt: str) -> _T:
    try:
        return change()
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; {doubt}", error.code) from error


def _refuse(code: int, what: str, detail: str | None) -> None:
    if code:
        error = error_of(code, what, detail)
        raise Rejected(error.message, ErrorCode(error.code))
