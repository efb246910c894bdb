"""The shards of this broker, as the controller on shard 0 sees them: the commits they get, how far they have come, and
the requests that they pass on.
"""

from collections.abc import Callable
from typing import Final

from millstream.cluster.creations import Creations
from millstream.cluster.follower import Follower
from millstream.cluster.messages import APPLIED, APPLY, BEGIN, SUBMIT, Commit, decode_revision, encode
from millstream.core.controller.commands import AnyCommand, encode_command
from millstream.core.controller.requests import AnyRequest, Results, decode_request, encode_results
from millstream.errors import MillstreamError
from millstream.raft.group import Group
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.wire.records import build_batch

PENDING_MAX: Final = 1_000
"""Requests in flight. Each holds its results and waits for one sync; clients send a handful."""

Done = Callable[[Results | MillstreamError], None]


class OwnShards:
    """All shards of one broker.

    Lifecycle: made with the controller. Shard: the controller's.
    Invariant: every shard has applied all commands below ``settled_revision``.
    """

    def __init__(
        self,
        shard: Shard,
        follower: Follower,
        revision: int,
        submit: Callable[[AnyRequest, Done], None],
        on_applied: Callable[[], None],
        move_mark: Callable[[int], None] | None = None,
    ) -> None:
        """``follower`` is the controller's own shard's; ``revision`` is what all shards were loaded with. ``submit``
        gets the requests of the others; ``on_applied()`` follows when a shard has applied more. ``move_mark`` makes
        the committed mark durable, in a cluster (`creations`).
        """
        self._shard = shard
        self._follower = follower
        self._submit = submit
        self._on_applied = on_applied
        self._applied = [revision] * shard.count
        self._creations: Creations | None = None
        if move_mark is not None:
            self._creations = Creations(shard.reactor, move_mark, lambda: self.settled_revision, self._begin)
        self._commands = shard.stats.counter("controller_commands")
        follower.on_applied = lambda applied: self._note(shard.id, applied)
        shard.mailbox.serve(SUBMIT, self._serve_submit)
        shard.mailbox.serve(APPLIED, self._serve_applied)

    @property
    def settled_revision(self) -> int:
        """Revision (exclusive) that every shard has applied."""
        return min(self._applied)

    def follow(self, commit: Commit) -> None:
        """Let every shard apply what was committed."""
        self._commands.inc(len(commit.commands))
        if self._creations is not None:
            self._creations.note(commit)
        payload = encode(commit)
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, APPLY, payload)
        self._follower.follow(commit)

    def _begin(self, revision: int) -> None:
        payload = encode(revision)
        for shard in range(self._shard.count):
            if shard != self._shard.id:
                self._shard.mailbox.tell(shard, BEGIN, payload)
        self._follower.let_begin(revision)

    def _note(self, shard: int, revision: int) -> None:
        self._applied[shard] = revision
        if self._creations is not None:
            self._creations.advance()
        self._on_applied()

    def _serve_applied(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = reply
        self._note(sender, decode_revision(payload))

    def _serve_submit(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender

        def answer(results: Results | MillstreamError) -> None:
            if isinstance(results, MillstreamError):
                reply.fail(results)
            else:
                reply.send(encode_results(results))

        self._submit(decode_request(payload), answer)


def append_commands(group: Group, commands: tuple[AnyCommand, ...], revision: int, now_ms: int) -> None:
    """Append ``commands``, which follow ``revision``, to the controller's log as one batch.

    Raises:
        ArenaFull: no memory; nothing was appended.
        MillstreamError: as ``Group.replicate``.
    """
    batch = build_batch((None, encode_command(command), (), now_ms) for command in commands)
    base = group.replicate([memoryview(batch)], len(batch), len(commands), now_ms)
    assert base == revision, f"commands at offset {base} of the log follow revision {revision}"
