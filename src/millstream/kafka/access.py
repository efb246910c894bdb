"""Access control on one shard: the questions that handlers ask, and the answers that connections keep.

``node.access`` is None where access is not controlled: then nothing is asked (``kafka.dispatch``). Entries come from
the metadata of the shard (``core.access``); a change is in force here when this shard has applied it. Superusers are
those of the settings, and the user that comes through the broker's own socket file.

**Cost.** An answer among thousands of entries takes microseconds, and a client asks the same again and again: its
connection keeps up to ``KEPT_MAX`` answers, and drops them when users or entries change.
"""

import hashlib
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from millstream.config.listeners import demands_login, speaks_tls
from millstream.core.access.entry import CLUSTER_NAME, OPERATIONS_OF
from millstream.model.access import Operation, ResourceType
from millstream.model.principal import SOCKET_FILE
from millstream.wire.sasl import SCRAM_BY_NUMBER

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.core.controller.security import SecurityState
    from millstream.net.connection import Connection

KEPT_MAX: Final = 1_024

Question = tuple[Operation, ResourceType, str]
"""Operation, resource type, name."""


class Refusals(Protocol):
    """Records refusals, and changes that no API of changes makes (``kafka.audit``)."""

    def refused(self, principal: str, host: str, api: str, error: str, name: str) -> None:
        """Rights on ``name`` are missing."""
        ...

    def changed(self, principal: str, host: str, api: str, what: list[str], errors: list[str]) -> None:
        """A client has asked for a change."""
        ...


class Kept:
    """What a connection keeps: answers as of ``revision``, and the fetch sessions that it has opened since."""

    __slots__ = ("answers", "principal", "revision", "sessions")

    def __init__(self, state: "SecurityState", principal: str) -> None:
        self.revision = state.revision
        self.principal = principal
        self.answers: dict[Question, bool] = {}
        self.sessions: set[int] = set()


class Access:
    """The rights of the clients of one shard. Lifecycle: as long as the shard. Shard: its own."""

    def __init__(self, settings: "Settings", metadata: "MetadataCache") -> None:
        self._superusers = frozenset((*settings.super_users, SOCKET_FILE))
        self._unless_listed = settings.allow_everyone_if_no_acl_found
        self._metadata = metadata
        self.audit: Refusals | None = None
        """Who records refusals; None where nothing is recorded."""

    def allows(self, connection: "Connection", operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do this."""
        answers = self.kept(connection).answers
        question = (operation, resource_type, name)
        answer = answers.get(question)
        if answer is None:
            answer = self._decide(connection.client.principal, connection.client.host, operation, resource_type, name)
            if len(answers) >= KEPT_MAX:
                answers.clear()
            answers[question] = answer
        return answer

    def allows_cluster(self, connection: "Connection", operation: Operation) -> bool:
        """Whether the client may do this to the cluster."""
        return self.allows(connection, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def allows_topic(self, connection: "Connection", operation: Operation, name: str) -> bool:
        """Whether the client may do this to a topic; the data of an event topic are the topic's own."""
        topic = self._metadata.topic(name)
        if topic is not None and topic.data_of:
            name = topic.data_of
        return self.allows(connection, operation, ResourceType.TOPIC, name)

    def allows_some_topic(self, connection: "Connection", operation: Operation) -> bool:
        """Whether the client may do this to some topic."""
        if self.allows(connection, operation, ResourceType.TOPIC, "hardcode"):  # superusers, and Kafka's own question
            return True
        rules = self._metadata.state.security.rules
        return rules.allows_some(connection.client.principal, connection.client.host, operation, ResourceType.TOPIC)

    def operations(self, connection: "Connection", resource_type: ResourceType, name: str) -> int:
        """What the client may do to a resource, as Kafka's bit field (KIP-430)."""
        bits = 0
        for operation in OPERATIONS_OF[resource_type]:
            if operation <= Operation.IDEMPOTENT_WRITE and self.allows(connection, operation, resource_type, name):
                bits |= 1 << operation
        return bits

    def kept(self, connection: "Connection") -> Kept:
        """What the connection keeps, as of now."""
        kept = connection.client.rights
        state = self._metadata.state.security
        if (
            not isinstance(kept, Kept)
            or kept.revision != state.revision
            or kept.principal != connection.client.principal
        ):
            kept = connection.client.rights = Kept(state, connection.client.principal)
        return kept

    def permits(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether a principal may do this from a host: the question without a connection that keeps the answer."""
        topic = self._metadata.topic(name) if resource_type is ResourceType.TOPIC else None
        if topic is not None and topic.data_of:
            name = topic.data_of
        return self._decide(principal, host, operation, resource_type, name)

    def mark(self, principal: str) -> str:
        """What tells the credentials of a principal from later ones. Empty without any: a certificate, a token."""
        name, users = principal.removeprefix("User:"), self._metadata.state.security.users
        own = [(mechanism, users[name, mechanism]) for mechanism in SCRAM_BY_NUMBER if (name, mechanism) in users]
        return hashlib.sha256(msgspec.msgpack.encode(own)).hexdigest() if own else ""

    def may_describe(self, principal: str, host: str, name: str) -> bool:
        """Whether a principal may know of a topic."""
        return self.permits(principal, host, Operation.DESCRIBE, ResourceType.TOPIC, name)

    def _decide(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        if principal in self._superusers:
            return True
        rules = self._metadata.state.security.rules
        decided = rules.decide(principal, host, operation, resource_type, name)
        return self._unless_listed if decided is None else decided


def controls_access(settings: "Settings") -> bool:
    """Whether this broker controls access: it does as soon as a listener authenticates its clients."""
    if settings.authorizer_class_name:
        return True
    protocols = dict(settings.listener_security_protocol_map)
    for each in settings.listen:
        protocol = protocols[each.name]
        if demands_login(protocol):
            return True
        if speaks_tls(protocol) and settings.for_listener(each.name).ssl_client_auth != "none":
            return True
    return False
