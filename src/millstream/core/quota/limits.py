"""Quotas of a cluster, and which of them holds for a client.

An *entity* names whom a quota is for: a user, a client id, both, or an address. A name of None is the default: every
user, client id or address without a quota of its own. For one client, the quota of a kind is the first of these that
has one (KIP-55):

1. the user and the client id
2. the user, every client id
3. the user
4. every user, the client id
5. every user, every client id
6. every user
7. the client id
8. every client id

The level decides who *shares* the quota. At levels 1, 2, 4 and 5 each pair of user and client id has one of its own; at
3 and 6 each user; at 7 and 8 each client id, for all its users. A client without a client id has the empty one, and is
limited like others.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_KINDS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""Quotas of users and client ids."""
IP_KINDS: Final = (CONNECTION_CREATION_RATE,)
WHOLE: Final = frozenset((PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE))
"""Quotas that are whole numbers."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted by type."""


class Sharers(NamedTuple):
    """Who shares one quota: a user, a client id, or a pair. None stands for all."""

    user: str | None
    client_id: str | None


class Bound(NamedTuple):
    """A quota as it holds for a client: its value, and who shares it."""

    value: float
    sharers: Sharers


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity with these parts."""
    return tuple(sorted(parts, key=lambda part: part[0]))


def plain_address(text: str) -> str | None:
    """An address as connections have it; None if ``text`` is not an address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class Limits:
    """All quotas of the cluster, by entity. ``revision`` counts the changes.

    Invariant: an entity that is present has at least one quota.
    """

    __slots__ = ("_addresses", "_kinds", "entities", "revision")

    def __init__(self, entities: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        self.entities: dict[Entity, dict[str, float]] = {
            entity: dict(values) for entity, values in (entities or {}).items()
        }
        self.revision = 0
        self._kinds: dict[str, int] = {}  # entities that have a quota of this kind
        self._addresses: dict[str, float] = {}
        for entity, values in self.entities.items():
            self._count(entity, values, adds=True)

    def copy(self) -> "Limits":
        other = Limits(self.entities)
        other.revision = self.revision
        return other

    def change(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity; None removes one."""
        values = self.entities.pop(entity, {})
        self._count(entity, values, adds=False)
        for kind, value in changes.items():
            if value is None:
                values.pop(kind, None)
            else:
                values[kind] = value
        if values:
            self.entities[entity] = values
            self._count(entity, values, adds=True)
        self.revision += 1

    def _count(self, entity: Entity, values: Mapping[str, float], *, adds: bool) -> None:
        for kind, value in values.items():
            self._kinds[kind] = self._kinds.get(kind, 0) + (1 if adds else -1)
            if not self._kinds[kind]:
                del self._kinds[kind]
            if kind == CONNECTION_CREATION_RATE:
                name = entity[0][1]
                address = "" if name is None else plain_address(name) or name
                if adds:
                    self._addresses[address] = value
                else:
                    self._addresses.pop(address, None)

    def limits_clients(self) -> bool:
        """Whether some quota of users or client ids exists."""
        return any(kind in self._kinds for kind in CLIENT_KINDS)

    def has(self, kind: str) -> bool:
        """Whether some quota of this kind exists."""
        return kind in self._kinds

    def bound(self, kind: str, user: str, client_id: str) -> Bound | None:
        """The quota of a client; None if it has none."""
        if kind not in self._kinds:
            return None
        for entity, sharers in _levels(user, client_id):
            value = self.entities.get(entity, _NO_VALUES).get(kind)
            if value is not None:
                return Bound(value, sharers)
        return None

    def addresses(self) -> dict[str, float]:
        """Connections per second by address; the default under the empty one."""
        return dict(self._addresses)


_NO_VALUES: Final[dict[str, float]] = {}


def _levels(user: str, client_id: str) -> Iterable[tuple[Entity, Sharers]]:
    """The eight levels, each with who shares its quota."""
    pair = Sharers(user, client_id)
    one_user = Sharers(user, None)
    one_client = Sharers(None, client_id)
    return (
        (((CLIENT_ID, client_id), (USER, user)), pair),
        (((CLIENT_ID, None), (USER, user)), pair),
        (((USER, user),), one_user),
        (((CLIENT_ID, client_id), (USER, None)), pair),
        (((CLIENT_ID, None), (USER, None)), pair),
        (((USER, None),), one_user),
        (((CLIENT_ID, client_id),), one_client),
        (((CLIENT_ID, None),), one_client),
    )


class EntityFilter(NamedTuple):
    """A filter of DescribeClientQuotas. ``exact``: names by type, None for the default. ``some``: types with any name.
    ``strict``: only entities without further types.
    """

    exact: Mapping[str, str | None]
    some: frozenset[str]
    strict: bool

    def matches(self, entity: Entity) -> bool:
        """Whether the entity passes. A strict filter without a part passes nothing, as in Kafka."""
        parts = dict(entity)
        if self.strict and len(parts) != len(self.exact) + len(self.some):
            return False
        missing: Callable[[str], bool] = lambda kind: kind not in parts  # noqa: E731
        if any(map(missing, self.exact)) or any(map(missing, self.some)):
            return False
        return all(parts[kind] == name for kind, name in self.exact.items())
