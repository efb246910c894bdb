"""ShareSessions: the sessions of members of share groups on one shard (KIP-932).

A member names its partitions once, and later what changes. A session belongs to the connection that opened it: the end
of that connection ends it, and releases what was acquired in it. It is found over any connection, and moves to the
shard of the one that asks for it (``share.moves``). Its token is unlike that of any other session, so that
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
from millstream.share.moves import NOT_FOUND, Given, Moves
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

    def __init__(self, group_id: str, member_id: str, token: SessionToken, connection: Opener | None) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.token = token
        self.connection = connection
        """That opened it; None: it is one of another shard."""
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

    def __init__(self, shard: Shard, home: SharePartitions, seats: Seats, moves: Moves) -> None:
        self._home = home
        self._seats = seats
        self._moves = moves
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_token: dict[SessionToken, ShareSession] = {}
        self._by_connection: dict[Opener, set[ShareSession]] = {}
        self._shard = shard.id
        self._next_token = shard.count + shard.id
        self._step = shard.count
        self._count = shard.stats.gauge("share_sessions")
        home.on_wake = self._woken
        self._away: dict[SessionToken, ShareSession] = {}
        """Sessions that connections of this shard have opened, and that other shards have now."""
        seats.on_lost = self._lost
        moves.on_give = self._give
        moves.on_close = self._close
        moves.on_forget = self._forget_away

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
        self._enter(session)
        return session

    def _enter(self, session: ShareSession) -> None:
        self._sessions[session.group_id, session.member_id] = session
        self._by_token[session.token] = session
        if session.connection is not None:
            self._by_connection.setdefault(session.connection, set()).add(session)
        self._count.set(len(self._sessions))

    def seek(self, group_id: str, member_id: str, epoch: int, done: Callable[[ShareSession | ErrorCode], None]) -> None:
        """As `find`, over any connection: a session that another shard has is brought here."""
        key = group_id, member_id
        if key in self._sessions or not self._moves.has_others:
            done(self.find(group_id, member_id, epoch))
            return

        def given(one: Given) -> None:
            if one.error or key in self._sessions:
                done(ErrorCode((one if one.error else NOT_FOUND).error))
                return
            opened = self._away.pop(one.token, None)
            session = ShareSession(group_id, member_id, one.token, None if opened is None else opened.connection)
            session.epoch = one.epoch
            session.partitions = dict.fromkeys(one.partitions)
            self._enter(session)
            if opened is not None:
                self._leave(opened)
            done(session)

        self._moves.ask(key, epoch, given)

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
            if session.token in self._away:
                self._forget_away(session.token)
                self._moves.close((session.group_id, session.member_id), session.token)
            else:
                self.end(session)

    def _forget(self, session: ShareSession) -> None:
        del self._sessions[session.group_id, session.member_id]
        del self._by_token[session.token]
        self._count.set(len(self._sessions))
        if session.connection is not None:
            self._leave(session)
        elif session.token % self._step != self._shard:
            self._moves.forget(session.token)
        if session.wake is not None:
            session.wake()

    def _leave(self, session: ShareSession) -> None:
        """A connection has one session less that it has opened."""
        assert session.connection is not None
        of_connection = self._by_connection[session.connection]
        of_connection.discard(session)
        if not of_connection:
            del self._by_connection[session.connection]

    # Sessions that move

    def _give(self, key: tuple[str, str], epoch: int) -> Given:
        """Another shard has a request of a session that is here."""
        session = self.find(*key, epoch)
        if isinstance(session, ErrorCode):
            return Given(int(session))
        del self._sessions[key]
        del self._by_token[session.token]
        self._count.set(len(self._sessions))
        if session.connection is not None:
            self._away[session.token] = session
        if session.wake is not None:
            session.wake()
        return Given(0, session.token, session.epoch, list(session.partitions))

    def _close(self, token: SessionToken) -> None:
        """The connection that opened a session of this shard has ended, on another shard."""
        session = self._by_token.get(token)
        if session is not None:
            self.end(session)

    def _forget_away(self, token: SessionToken) -> None:
        """A session that was opened here has ended elsewhere."""
        session = self._away.pop(token, None)
        if session is not None:
            self._leave(session)

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
