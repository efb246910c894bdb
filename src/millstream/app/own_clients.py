"""What the supervisor has of its own broker's clients: the side process, questions about tables, callers over HTTP."""

from millstream.app.acting import ActingClients
from millstream.app.audit_topic import AuditTopic
from millstream.app.console_requests import ConsoleRequests
from millstream.app.own_way import Connect, OwnWay, callers_way
from millstream.app.registry_requests import RegistryRequests
from millstream.app.served_tables import TableQuestions
from millstream.app.side_frames import SideSettings
from millstream.app.side_process import SideProcess
from millstream.config.settings import Settings
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
        self.side.close()
        self.tables.close()
