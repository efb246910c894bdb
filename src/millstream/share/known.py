"""KnownMembers: which sessions fetch from one share partition, and which of them wait for a look at what is stored."""

from millstream.core.share.runs import NO_SESSION, SessionToken


class KnownMembers:
    """The sessions of one share partition; a member has one.

    Lifecycle: the share partition's. Invariant: ``unproved`` are sessions in ``sessions``.
    """

    __slots__ = ("sessions", "unproved")

    def __init__(self) -> None:
        self.sessions: dict[str, SessionToken] = {}
        """By member."""
        self.unproved: set[SessionToken] = set()
        """Sessions that are newer than the last look at what is stored."""

    def has(self, member: str, token: SessionToken) -> bool:
        """Whether this is the session of the member."""
        return self.sessions.get(member) == token

    def put(self, member: str, token: SessionToken) -> None:
        """A member has a session that was not known."""
        self.unproved.discard(self.sessions.get(member, NO_SESSION))
        self.sessions[member] = token
        self.unproved.add(token)

    def end(self, token: SessionToken) -> None:
        """A session has ended."""
        self.sessions = {member: one for member, one in self.sessions.items() if one != token}
        self.unproved.discard(token)
