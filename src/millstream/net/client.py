"""The client of a connection: where it is, who it is, and what the Kafka edge remembers of it between requests."""

from typing import Protocol


class Gated(Protocol):
    """What stands before a connection that has to log in (``kafka.logins.gate``)."""

    @property
    def takes_bare(self) -> bool:
        """Whether the next frame is a bare token, which has no request header."""
        ...


class Client:
    """One client, for as long as its connection.

    Shard: the connection's. Invariant: ``id_bytes`` is ``id`` as it came, or empty if it is too long to keep.
    """

    __slots__ = (
        "gate",
        "host",
        "id",
        "id_bytes",
        "leaderless",
        "listener",
        "local_host",
        "local_port",
        "port",
        "principal",
        "rights",
        "software",
    )

    def __init__(self, peer: tuple[str, int], local: tuple[str, int], listener: str, principal: str) -> None:
        self.host, self.port = peer
        self.local_host, self.local_port = local
        """The address that the client connected to."""
        self.listener = listener
        self.principal = principal
        """Who the client is: known before its first request, or by a login."""
        self.gate: Gated | None = None
        """What has to let requests pass before a login; None where the listener demands none."""
        self.rights: object = None
        """What `kafka.access` has found out about the client's rights."""
        self.software: tuple[str, str] = ("", "")
        """Name and version of the client's library, as it says in ApiVersions."""
        self.id: str | None = None
        self.id_bytes = memoryview(b"")
        self.leaderless = 0
        """Responses that lacked a leader: the edge delays them in turns."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
