"""What the supervisor has of its own broker's clients: the side process, and questions about tables."""

from millstream.app.console_requests import Connect, ConsoleRequests
from millstream.app.own_way import OwnWay
from millstream.app.registry_requests import RegistryRequests
from millstream.app.served_tables import TableQuestions
from millstream.app.side_frames import SideSettings
from millstream.app.side_process import SideProcess


class OwnClients:
    """The clients of one broker. They connect when they are first needed."""

    def __init__(self, way: OwnWay, side: SideSettings, connect: Connect, no_console: str) -> None:
        """``no_console`` is why there is no console; empty if there is one."""
        self.side = SideProcess(side)
        self.registry = RegistryRequests(self.side)
        self.console = ConsoleRequests(self.side, connect, no_console)
        self.tables = TableQuestions(way)

    def close(self) -> None:
        """End the process, and close the connections."""
        self.side.close()
        self.tables.close()
