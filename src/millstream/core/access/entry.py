"""Access control entries, in Kafka's numbers (KIP-140, KIP-290)."""

from typing import Final

import msgspec

from millstream.model.access import Operation, PatternType, Permission, ResourceType

WILDCARD: Final = "*"
"""As a literal name: every resource. As a host: every host."""
EVERYONE: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The one resource of type CLUSTER."""


_O = Operation
OPERATIONS_OF: Final[dict[int, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
"""Operations that each type of resource knows (Kafka's AclEntry.supportedOperations), without ALL."""

IMPLIED_BY: Final[dict[int, frozenset[int]]] = {
    _O.DESCRIBE: frozenset((_O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: frozenset((_O.ALTER_CONFIGS,)),
}
"""Operations whose ALLOW allows another one, too. A DENY denies its own operation alone."""


class AclEntry(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Who may, or may not, do what to which resources. Numbers as above."""

    resource_type: int
    pattern_type: int
    name: str
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(msgspec.Struct, frozen=True, array_like=True):
    """Which entries are meant. None and ``ANY`` match everything; pattern type ``MATCH`` what affects the name."""

    resource_type: int
    pattern_type: int
    name: str | None
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, entry: AclEntry) -> bool:
        """Whether the entry is meant."""
        return (
            self.resource_type in (ResourceType.ANY, entry.resource_type)
            and self._matches_name(entry)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def _matches_name(self, entry: AclEntry) -> bool:
        if self.pattern_type in (PatternType.ANY, entry.pattern_type):
            return self.name in (None, entry.name)
        if self.pattern_type != PatternType.MATCH:
            return False
        if self.name is None:
            return True
        if entry.pattern_type == PatternType.LITERAL:
            return entry.name in (self.name, WILDCARD)
        return self.name.startswith(entry.name)
