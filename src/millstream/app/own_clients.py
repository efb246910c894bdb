"""What the supervisor has of its own broker's clients: the side process, questions about tables, callers over HTTP, and
what it shows of backups and gathers into bundles.
"""

import threading
from typing import Any, Final

from millstream.app.acting import ActingClients
from millstream.app.audit_topic import AuditTopic
from millstream.app.backups import BackupPlace
from millstream.app.bundles import Bundles
from millstream.app.console_requests import ConsoleRequests
from millstream.app.own_way import NO_WAY, Connect, OwnWay, callers_way
from millstream.app.registry_requests import RegistryRequests
from millstream.app.side_frames import SideSettings
from millstream.app.side_process import SideProcess
from millstream.client import Cluster
from millstream.client.served_tables import ServedTables
from millstream.config.settings import Settings
from millstream.errors import Unavailable
from millstream.secure.tokens.sign_in import provider_of
from millstream.telemetry.metrics import StatsSlab


class OwnClients:
    """The clients of one broker. They connect when they are first needed."""

    def __init__(self, settings: Settings, way: OwnWay, side: SideSettings, connect: Connect, no_console: str) -> None:
        """``no_console`` is why there is no console; empty if there is one."""
        self.side = SideProcess(side)
        self.registry = RegistryRequests(self.side)
        self.console = ConsoleRequests(self.side, connect, no_console, provider_of(settings))
        self.tables = TableQuestions(way)
        self.acting = ActingClients(settings, callers_way(settings, way), connect)
        self.backups = BackupPlace(settings.backup_url)
        self.bundles = Bundles(settings.data_dir)

        self._way = way
        self._audit: AuditTopic | None = None

    def copy_audit(self, stats: StatsSlab, settings: Settings) -> None:
        """Copy the audit into its topic, if one is set, from ``start`` on."""
        if settings.audit_topic:
            self._audit = AuditTopic(stats, self._way, settings)

    def start(self) -> None:
        """The broker serves."""
        if self._audit is not None:
            self._audit.start()

    def close(self) -> None:
        """End the process and the threads, and close the connections."""
        if self._audit is not None:
            self._audit.close()
        self.bundles.close()
        self.side.close()
        self.tables.close()


_TIMEOUT_S: Final = 3.0


class TableQuestions:
    """The tables of topics, for ``/v1/pipelines`` and the page. HTTP threads ask one at a time, and
    wait for a few seconds at most. The topic ``__pipelines`` is read from where the last question ended.
    """

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
