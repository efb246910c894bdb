"""Finds the broker that coordinates a group or a transactional id, and asks it.

``Coordinators`` remembers what it found. A request that fails for a transient reason is repeated like every other one
of ``Cluster``, after the coordinator was looked for again.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from millstream.client.cluster import Cluster, error_of
from millstream.client.connection import Connection
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

GROUP: Final = 0
TRANSACTION: Final = 1
"""Kinds of what is coordinated."""

_SEVERAL_KEYS: Final = 4

_T = TypeVar("_T")


def find_coordinator(cluster: Cluster, kind: int, key: str) -> int:
    """Node id of the broker that coordinates a group or a transactional id; asked once.

    Raises:
        Retriable: no coordinator at the moment.
    """
    connection = cluster.any_connection()
    version = connection.version_of(FindCoordinatorRequest.API_KEY, 1)
    if version >= _SEVERAL_KEYS:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    else:
        request = FindCoordinatorRequest(key, kind)
    answer = connection.call(request, FindCoordinatorResponse, version)
    found = answer.coordinators[0] if answer.coordinators else answer
    if found.error_code:
        raise error_of(found.error_code, f"coordinator of {key}", found.error_message)
    return found.node_id


class Coordinators:
    """The coordinators of one cluster, as far as they were asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._found: dict[tuple[int, str], int] = {}

    def node(self, kind: int, key: str) -> int:
        """Node id of a coordinator, from memory or asked for."""
        found = self._found.get((kind, key))
        if found is None:
            found = self._found[kind, key] = find_coordinator(self.cluster, kind, key)
        return found

    def forget(self, kind: int, key: str) -> None:
        """Look for this coordinator again, and refresh the brokers' addresses."""
        self._found.pop((kind, key), None)
        self.cluster.metadata([])

    def insist(self, what: str, kind: int, key: str, ask: Callable[[Connection], _T]) -> _T:
        """Call ``ask`` with a connection to the coordinator until it succeeds.

        Raises:
            Unavailable: time is over; the message has the last reason.
            Rejected: a permanent reason.
        """
        return self.cluster.insist(
            what,
            lambda: ask(self.cluster.connection(self.node(kind, key))),
            lambda: self.forget(kind, key),
        )
