"""A member of a group."""

from typing import Final

from millstream.core.group.deadlines import Deadline

Token = object
"""Whatever the caller wants back with an answer."""

NO_ASSIGNMENT: Final = b""

Protocols = tuple[tuple[str, bytes], ...]
"""(assignor, metadata) in the member's order of preference, each assignor once."""


class Member:
    """A member that joined.

    ``join_token`` and ``sync_token`` are the requests that wait for an answer. ``is_new`` holds from the first join
    until the rebalance that takes the member in: until then it has no member id and cannot heartbeat, so its join has
    a time limit.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        session: Deadline,
        assignment: bytes = NO_ASSIGNMENT,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.session = session
        self.assignment = assignment
        self.join_token: Token | None = None
        self.sync_token: Token | None = None
        self.is_new = False

    @property
    def satisfies_heartbeat(self) -> bool:
        """A member whose request is parked here is alive, but for new ones: those may have given up and retried."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for an assignor that it named; empty if it named none such."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""
