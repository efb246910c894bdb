"""The tables of topics, for ``/v1/pipelines`` and the page: the supervisor asks its own broker, as a client.

HTTP threads ask one at a time, and each waits for a few seconds at most. The topic ``__pipelines`` is read from where
the last question ended.
"""

import threading
from typing import Any, Final

from millstream.app.own_way import NO_WAY, OwnWay
from millstream.client import Cluster
from millstream.client.served_tables import ServedTables
from millstream.errors import Unavailable

_TIMEOUT_S: Final = 3.0


class TableQuestions:
    """Shared by the HTTP threads."""

    def __init__(self, way: OwnWay) -> None:
        self._turn = threading.Lock()
        self._cluster = None
        if way.bootstrap:
            self._cluster = Cluster(
                way.bootstrap, client_id="millstream-tables", timeout_s=_TIMEOUT_S, security=way.security
            )
        self._tables = ServedTables(self._cluster) if self._cluster is not None else None

    def all(self) -> list[dict[str, Any]]:
        """As ``ServedTables.all``.

        Raises:
            MillstreamError: the broker does not answer, or there is no way to it.
        """
        if self._tables is None:
            raise Unavailable(f"tables of topics are not read: {NO_WAY}")
        with self._turn:
            return self._tables.all()

    def close(self) -> None:
        """Close the connections."""
        if self._cluster is not None and self._turn.acquire(timeout=_TIMEOUT_S):
            self._cluster.close()
            self._turn.release()
