"""ShareSessions: the sessions of members of share groups on one shard (KIP-932).

A member names its partitions once, and later what changes. A session belongs to the connection that opened it: the end
of that connection ends it, and releases what was acquired in it. Its token is unlike that of any other session, so that
the late end of an old connection releases nothing of the member's next session.

**Bad input.** Epoch 0 opens a session, in place of one that there is; -1 ends it; any other has to be the next one
(INVALID_SHARE_SESSION_EPOCH), of a session that exists (SHARE_SESSION_NOT_FOUND). **Crash.** All sessions end, as do
the locks. **Overload.** A table that is full takes no more (SHARE_SESSION_LIMIT_REACHED); none is evicted by age, for
sessions hold locks.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from millstream.core.share.runs import SessionToken
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ShardId
from millstream.share.home import SharePartitions

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = (1 << 31) - 1

SESSIONS_MAX: Final = 2_000
"""Of one shard: Kafka's default of a broker."""

TopicPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


class ShareSession:
    """One session. ``wake`` is called when it may find something; set while a fetch of it waits."""

    __slots__ = ("connection", "epoch", "group_id", "member_id", "partitions", "token", "wake", "woken")

    def __init__(self, group_id: str, member_id: str, token: SessionToken, connection: object) -> None:
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

    def __init__(self, shard: ShardId, shards: int, home: SharePartitions) -> None:
        self._home = home
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_token: dict[SessionToken, ShareSession] = {}
        self._by_connection: dict[object, set[ShareSession]] = {}
        self._next_token = shards + shard
        self._step = shards
        home.on_wake = self._woken

    def open(self, group_id: str, member_id: str, connection: object) -> ShareSession | ErrorCode:
        """A request with epoch 0."""
        old = self._sessions.get((group_id, member_id))
        if old is None and len(self._sessions) >= SESSIONS_MAX:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        token = SessionToken(self._next_token)
        self._next_token += self._step
        if old is not None:
            self._forget(old)
        self._home.replace_session(group_id, member_id, token)  # of whichever connection, on whichever shard
        session = ShareSession(group_id, member_id, token, connection)
        self._sessions[group_id, member_id] = session
        self._by_token[token] = session
        self._by_connection.setdefault(connection, set()).add(session)
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
            self._home.end_session(session.group_id, session.token)

    def connection_closed(self, connection: object) -> None:
        """The sessions that a connection has opened end with it."""
        for session in list(self._by_connection.get(connection, ())):
            self.end(session)

    def _forget(self, session: ShareSession) -> None:
        del self._sessions[session.group_id, session.member_id]
        del self._by_token[session.token]
        of_connection = self._by_connection[session.connection]
        of_connection.discard(session)
        if not of_connection:
            del self._by_connection[session.connection]
        if session.wake is not None:
            session.wake()

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
