"""What the supervisor has of its own broker's clients: the schema registry's process, and questions about tables."""

from millstream.app.registry_process import RegistryProcess
from millstream.app.served_tables import TableQuestions


class OwnClients:
    """Both for one bootstrap address. They connect when they are first needed."""

    def __init__(self, bootstrap: str) -> None:
        """``bootstrap`` is a listener without TLS, or the broker's socket file; empty if it has neither."""
        self.registry = RegistryProcess(bootstrap)
        self.tables = TableQuestions(bootstrap)

    def close(self) -> None:
        """End the process, and close the connections."""
        self.registry.close()
        self.tables.close()
