"""What the supervisor has of its own broker's clients: the side process, questions about tables, callers over HTTP."""

from millstream.app.acting import ActingClients
from millstream.app.console_requests import ConsoleRequests
from millstream.app.own_way import Connect, OwnWay, callers_way
from millstream.app.registry_requests import RegistryRequests
from millstream.app.served_tables import TableQuestions
from millstream.app.side_frames import SideSettings
from millstream.app.side_process import SideProcess
from millstream.config.settings import Settings


class OwnClients:
    """The clients of one broker. They connect when they are first needed."""

    def __init__(self, settings: Settings, way: OwnWay, side: SideSettings, connect: Connect, no_console: str) -> None:
        """``no_console`` is why there is no console; empty if there is one."""
        self.side = SideProcess(side)
        self.registry = RegistryRequests(self.side)
        self.console = ConsoleRequests(self.side, connect, no_console)
        self.tables = TableQuestions(way)
        self.acting = ActingClients(settings, callers_way(settings, way), connect)

    def close(self) -> None:
        """End the process, and close the connections."""
        self.side.close()
        self.tables.close()
