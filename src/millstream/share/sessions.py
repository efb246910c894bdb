"""ShareSessions: the sessions of members of share groups on one shard (KIP-932).

A member names its partitions once, and later what changes. A session belongs to the connection that opened it: the end
of that connection ends it, and releases what was acquired in it. Its token is unlike that of any other session, so that
the late end of an old connection releases nothing of the member's next session.

**Bad input.** Epoch 0 opens a session, in place of one that there is; -1 ends it; any other has to be the next one
(INVALID_SHARE_SESSION_EPOCH), of a session that exists (SHARE_SESSION_NOT_FOUND). **Crash.** All sessions end, as do
the locks. **Overload.** A broker without a free seat (``share.seats``) takes no more sessions
(SHARE_SESSION_LIMIT_REACHED); none is evicted by age, for sessions hold locks.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from millstream.core.share.runs import SessionToken
from millstream.model.error_code import ErrorCode
from millstream.shard.context import Shard
from millstream.share.home import SharePartitions
from millstream.share.seats import Seats

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = (1 << 31) - 1

TopicPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


class Opener(Protocol):
    """The connection that opens a session."""

    @property
    def closed(self) -> bool: ...


class ShareSession:
    """One session. ``wake`` is called when it may find something; set while a fetch of it waits."""

    __slots__ = ("connection", "epoch", "group_id", "member_id", "partitions", "token", "wake", "woken")

    def __init__(self, group_id: str, member_id: str, token: SessionToken, connection: Opener) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.token = token
        self.connection = connection
        self.epoch = 1
        """That the next request has to have."""
        self.partitions: dict[TopicPartition, None] = {}
        self.wake: Callable[[], None] | None = None
        self.woken = False
        """It was woken since a fetch last looked."""

    def in_turn(self) -> list[TopicPartition]:
        """The partitions; another one comes first in each epoch."""
        names = list(self.partitions)
        first = self.epoch % len(names) if names else 0
        return names[first:] + names[:first]


class ShareSessions:
    """All sessions of one shard. Lifecycle: one per shard."""

    def __init__(self, shard: Shard, home: SharePartitions, seats: Seats) -> None:
        self._home = home
        self._seats = seats
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_token: dict[SessionToken, ShareSession] = {}
        self._by_connection: dict[Opener, set[ShareSession]] = {}
        self._next_token = shard.count + shard.id
        self._step = shard.count
        self._count = shard.stats.gauge("share_sessions")
        home.on_wake = self._woken
        seats.on_lost = self._lost

    def open(
        self, group_id: str, member_id: str, connection: Opener, done: Callable[[ShareSession | ErrorCode], None]
    ) -> None:
        """A request with epoch 0; ``done`` gets the session, maybe before this returns."""

        def seated(is_seated: bool) -> None:
            if not is_seated:
                done(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
                return
            session = self._open(group_id, member_id, connection)
            done(session)
            if connection.closed:
                self.end(session)  # its end came before the seat

        self._seats.take(group_id, member_id, seated)

    def _open(self, group_id: str, member_id: str, connection: Opener) -> ShareSession:
        old = self._sessions.get((group_id, member_id))
        token = SessionToken(self._next_token)
        self._next_token += self._step
        if old is not None:
            self._forget(old)
        self._home.replace_session(group_id, member_id, token)  # of whichever connection, on whichever shard
        session = ShareSession(group_id, member_id, token, connection)
        self._sessions[group_id, member_id] = session
        self._by_token[token] = session
        self._by_connection.setdefault(connection, set()).add(session)
        self._count.set(len(self._sessions))
        return session

    def find(self, group_id: str, member_id: str, epoch: int) -> ShareSession | ErrorCode:
        """A request with another epoch. The session is one epoch further then, unless this one ends it."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                return ErrorCode.INVALID_SHARE_SESSION_EPOCH
            session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return session

    def is_open(self, session: ShareSession) -> bool:
        """Whether no other session has taken the place of this one."""
        return self._by_token.get(session.token) is session

    def end(self, session: ShareSession) -> None:
        """The member has ended its session: what it holds is released."""
        if self.is_open(session):
            self._forget(session)
            self._seats.give_back(session.group_id, session.member_id)
            self._home.end_session(session.group_id, session.token)

    def connection_closed(self, connection: Opener) -> None:
        """The sessions that a connection has opened end with it."""
        for session in list(self._by_connection.get(connection, ())):
            self.end(session)

    def _forget(self, session: ShareSession) -> None:
        del self._sessions[session.group_id, session.member_id]
        del self._by_token[session.token]
        self._count.set(len(self._sessions))
        of_connection = self._by_connection[session.connection]
        of_connection.discard(session)
        if not of_connection:
            del self._by_connection[session.connection]
        if session.wake is not None:
            session.wake()

    def _lost(self, group_id: str, member_id: str) -> None:
        """The member has a new session on another shard, which has taken over what it holds."""
        session = self._sessions.get((group_id, member_id))
        if session is not None:
            self._forget(session)

    def _woken(self, token: SessionToken) -> None:
        session = self._by_token.get(token)
        if session is not None:
            session.woken = True
            if session.wake is not None:
                session.wake()


def change(session: ShareSession, added: Iterable[TopicPartition], forgotten: Iterable[TopicPartition]) -> None:
    """What a request says of the partitions of its session."""
    for one in added:
        session.partitions[one] = None
    for one in forgotten:
        session.partitions.pop(one, None)
