"""Rights of APIs: the vocabulary of ``kafka.authorize``, and the table from which the reference is made."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.kafka.access import Access
from millstream.model.access import Operation, ResourceType
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.schema import Request, Response

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.net.connection import Connection

Merge = Callable[[Any], Response]
"""Adds what was refused to a response of the handler, or takes out of it what the client may not see."""


class Passed(NamedTuple):
    """What the handler gets, and what becomes of its response."""

    request: Request
    merge: Merge | None = None


class Right(NamedTuple):
    """One right that an API asks for, and the error where it is missing. ``when`` restricts it, in words."""

    resource: ResourceType
    operation: Operation
    error: ErrorCode
    when: str = ""


ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
MESSAGES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


class Asker(NamedTuple):
    """One client's rights, for the time of one request."""

    access: Access
    connection: "Connection"
    metadata: "MetadataCache"
    settings: "Settings"
    version: int

    def refused(self, api: str, error: ErrorCode, name: str) -> None:
        """Record a refusal. For Produce and Fetch, whose responses are not searched for errors."""
        audit, connection = self.access.audit, self.connection
        if audit is not None:
            audit.refused(connection.client.principal, connection.client.host, api, error.name, name)

    def topic(self, operation: Operation, name: str) -> bool:
        return self.access.allows_topic(self.connection, operation, name)

    def group(self, operation: Operation, name: str) -> bool:
        return self.access.allows(self.connection, operation, ResourceType.GROUP, name)

    def transaction(self, operation: Operation, name: str) -> bool:
        return self.access.allows(self.connection, operation, ResourceType.TRANSACTIONAL_ID, name)

    def cluster(self, operation: Operation) -> bool:
        return self.access.allows_cluster(self.connection, operation)

    def topic_of_id(self, operation: Operation, topic_id: bytes) -> bool:
        """Whether a topic may be used by its id. An id that does not exist passes: the handler says that."""
        topic = self.metadata.topic_by_id(topic_id)
        return topic is None or self.topic(operation, topic.name)

    def named(self, operation: Operation, name: str, topic_id: bytes) -> bool:
        """Whether a topic may be used that is named by name, or by id where it has no name."""
        return self.topic(operation, name) if name else self.topic_of_id(operation, topic_id)

    def operations(self, resource_type: ResourceType, name: str) -> int:
        return self.access.operations(self.connection, resource_type, name)


Guard = Callable[[Asker, Any], Passed | Response]

GUARDS: Final[dict[int, Guard]] = {}
"""By API key. An API without rights of its own has a guard that lets everything pass."""

RIGHTS: Final[dict[int, tuple[Right, ...]]] = {}
"""By API key, for the reference and the tests."""


def guard(key: ApiKey, *rights: Right) -> Callable[[Guard], Guard]:
    """Declare the guard of an API and the rights that it asks for."""

    def declare(function: Guard) -> Guard:
        assert key not in GUARDS, f"API {key} has two guards"
        GUARDS[key] = function
        RIGHTS[key] = rights
        return function

    return declare


def right(resource: ResourceType, operation: Operation, when: str = "") -> Right:
    """A right whose error is the one of its resource."""
    return Right(resource, operation, ERRORS[resource], when)


def pass_all(asker: Asker, request: Request) -> Passed:
    """Nothing is asked for."""
    _ = asker
    return Passed(request)
