"""What the supervisor has of its own broker's clients: the side process, and questions about tables."""

from millstream.app.registry_requests import RegistryRequests
from millstream.app.served_tables import TableQuestions
from millstream.app.side_frames import SideSettings
from millstream.app.side_process import SideProcess


class OwnClients:
    """The clients of one broker. They connect when they are first needed."""

    def __init__(self, bootstrap: str, side: SideSettings) -> None:
        """``bootstrap`` is a listener without TLS, or the broker's socket file; empty if it has neither."""
        self.side = SideProcess(side)
        self.registry = RegistryRequests(self.side)
        self.tables = TableQuestions(bootstrap)

    def close(self) -> None:
        """End the process, and close the connections."""
        self.side.close()
        self.tables.close()
