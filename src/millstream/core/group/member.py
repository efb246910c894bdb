"""A member of a classic group."""

from typing import Any, Final

from millstream.core.group.deadlines import Deadline

Token = object
"""An opaque value that the caller gets back with a response."""

NO_ASSIGNMENT: Final = b""

Protocols = tuple[tuple[str, bytes], ...]
"""(assignor, metadata) in the member's order of preference, each assignor once."""


class Member:
    """A member that joined.

    ``join_token`` and ``sync_token`` are its parked requests. ``is_new`` holds from the first join to the end of its
    rebalance. Until then the client has no member id and cannot send heartbeats, so its join has a time limit.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
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
        protocols: Protocols,
        session: Deadline[Any],
        assignment: bytes = NO_ASSIGNMENT,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.session = session
        self.assignment = assignment
        self.join_token: Token | None = None
        self.sync_token: Token | None = None
        self.is_new = False

    @property
    def satisfies_heartbeat(self) -> bool:
        """Whether a parked request proves that the member is alive. Not for new members, which may have given up and
        retried.
        """
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for an assignor; empty if it does not support the assignor."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""
