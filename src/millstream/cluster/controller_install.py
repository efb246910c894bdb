"""Sends the controller's snapshot to a broker that lacks commands which every other broker's log has trimmed.

::

    leader cannot send entry by entry ──files of its log──► staged here (`raft.installing`)
    SNAPSHOT calls ──pieces of the leader's snapshot file──► checked ► note ► both slots ► log adopted ► restart

The controller's log is trimmed after the snapshots of each broker, so a broker that joins, or was away for long, may
need commands that no log has. The snapshot has the state that they produced. A running broker does not replace its
state: once snapshot and log are on its disk it stops in order and starts again by itself, with the new state.
Partitions and topics that it holds no more are removed by that start (`app.stale_topics`).

A start takes a partition that the snapshot names, and that has no files, for one that has lost them. A partition that
was made, or that moved here, while the broker was away never had any: it gets the files of an empty log before the
snapshot is put in its place. Two replicas that both count as lost would wait for each other for ever. A broker that
came up without a log and without a state may have lost everything: it makes none.

**Crash.** The note comes first and says which revision follows: it counts only when a snapshot of that revision is
there. With the snapshot and without the log the next start is behind again, and the same happens. **Failure.** A leader
that does not answer, or whose snapshot is older than its log's start, is asked again; after `TRIES` the broker restarts
without, and is offered the files again. **Bad input.** A snapshot that does not match its checksum is refused.
**Overload.** One piece is in flight at a time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.cluster.revision_marks import write_note
from millstream.cluster.state_files import newest_snapshot_file, unpack_snapshot
from millstream.errors import Corruption, MillstreamError, Retriable
from millstream.format.names import SEGMENT_SUFFIX, parse_offset
from millstream.iobuf import ArenaFull
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.replication import NO_REPLICA, node_of
from millstream.storage.log.lost import begin_new
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.state_files import SnapshotStore
    from millstream.core.controller.state import ControllerState, TopicState
    from millstream.model.replication import ReplicaId
    from millstream.peers.calls import CallDone, Calls
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.log.importing import StagedFiles
    from millstream.storage.log.log import Log

SNAPSHOT: Final = 6
"""Method of ``peers.calls``: a piece of the controller's snapshot."""

PIECE_BYTES: Final = 256 << 10
TRIES: Final = 20
_AGAIN_US: Final = 500_000
_TIMEOUT_MS: Final = 5_000
_BYTES_MAX: Final = 1 << 30


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    """The answer. The file is replaced now and then: ``revision`` tells one from another."""

    revision: int
    size_bytes: int
    data: bytes


class _Wanted(msgspec.Struct, frozen=True, array_like=True):
    revision: int
    """-1 for the newest."""
    position: int


class SnapshotSource:
    """Serves the snapshot of this broker to others.

    Lifecycle: one per broker. Shard: the controller's. It keeps the file that it read last, so that a receiver gets all
    pieces of one.
    """

    def __init__(self, calls: Calls, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._revision = -1
        self._data: memoryview = memoryview(b"")
        calls.serve(SNAPSHOT, self._serve)

    def _serve(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        _ = sender, timeout_ms
        wanted = msgspec.msgpack.decode(payload, type=_Wanted)
        if wanted.revision < 0:
            found = newest_snapshot_file(self._disk, self._data_dir)
            if found is None:
                raise Retriable("this broker has no snapshot of the controller yet", ErrorCode.NOT_CONTROLLER)
            self._revision, self._data = found
        elif wanted.revision != self._revision:
            raise Retriable("another snapshot is sent now: ask for that", ErrorCode.NOT_CONTROLLER)
        piece = bytes(self._data[wanted.position : wanted.position + PIECE_BYTES])
        done(msgspec.msgpack.encode(_Piece(self._revision, len(self._data), piece)))


class _Download:
    """The snapshot of the leader on its way here. After a failure it is fetched again, `TRIES` times in all."""

    def __init__(
        self,
        reactor: Reactor,
        calls: Calls,
        leader: NodeId | None,
        received: Callable[[_Download, bytes], None],
        given_up: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._calls = calls
        self._leader = leader
        self._received = received
        self._given_up = given_up
        self._tries = 0

    def start(self) -> None:
        self._tries += 1
        leader = self._leader
        if leader is None or self._tries > TRIES:
            self._given_up()
            return
        pieces = bytearray()

        def ask(revision: int) -> None:
            wanted = msgspec.msgpack.encode(_Wanted(revision, len(pieces)))
            self._calls.call(leader, SNAPSHOT, wanted, _TIMEOUT_MS, answered)

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                self.again(answer.message)
                return
            piece = msgspec.msgpack.decode(answer, type=_Piece)
            pieces.extend(piece.data)
            if not piece.data or not len(pieces) <= piece.size_bytes <= _BYTES_MAX:
                self.again("its pieces do not add up")
            elif len(pieces) < piece.size_bytes:
                ask(piece.revision)
            else:
                self._received(self, bytes(pieces))

        ask(-1)

    def again(self, why: str) -> None:
        """What was received is of no use: fetch it again later."""
        operator_log.warning("the controller's snapshot is not received: %s; it is asked for again", why)
        self._reactor.call_later(_AGAIN_US, self.start)


class ControllerInstall:
    """The receiving side.

    Lifecycle: made with the controller; it ends the broker's process when it has worked. Shard: the controller's.
    """

    def __init__(
        self,
        reactor: Reactor,
        group: ReplicatedGroup,
        calls: Calls,
        disk: Disk,
        data_dir: str,
        store: SnapshotStore,
        suspend: Callable[[], int],
        adopt: Callable[[Log, StagedFiles, Callable[[], None]], None],
        begin_anew: Callable[[str], None],
        known: Callable[[], ControllerState],
        directory_of: Callable[[TopicState, int], str],
    ) -> None:
        """``suspend`` takes the group down, freezes this broker's disk, and gives the revision
        that it has applied. ``adopt`` puts files in the place of a log (`ShardStorage.adopt_log`; ArenaFull).
        ``begin_anew`` stops this broker and starts it again. ``known()`` is the state that this broker has carried out,
        ``directory_of`` says where a partition's files are or will be.
        """
        self._reactor = reactor
        self._group = group
        self._calls = calls
        self._disk = disk
        self._data_dir = data_dir
        self._store = store
        self._suspend = suspend
        self._adopt = adopt
        self._begin_anew = begin_anew
        self._known = known
        self._had_log = group.log.next_offset > 0
        """This broker came up with its log, even if it had not noted what of it is committed."""
        self._directory_of = directory_of
        group.events.on_install = self._on_install

    def _on_install(self, files: StagedFiles) -> None:
        """The leader's log is here; what came before it is in the leader's snapshot."""
        leader = None if self._group.leader == NO_REPLICA else NodeId(node_of(self._group.leader))
        applied = self._suspend()
        names = self._disk.list(files.directory)
        bases = [base for base in (parse_offset(name, SEGMENT_SUFFIX) for name in names) if base is not None]
        least = max(applied, min(bases, default=files.end_offset))
        operator_log.info("the controller's log here is outdated: the snapshot of broker %s is fetched", leader)

        def received(download: _Download, data: bytes) -> None:
            try:
                revision = self._store_snapshot(data, least)
            except (Corruption, Retriable) as error:
                download.again(error.message)
            except OSError as error:
                download.again(os.strerror(error.errno or 0))
            else:
                self._put_in_place(files, revision)

        why = "the controller's snapshot was not received; this broker restarts and asks again"
        _Download(self._reactor, self._calls, leader, received, lambda: self._begin_anew(why)).start()

    def _store_snapshot(self, data: bytes, least: int) -> int:
        """Make a snapshot durable that ends at ``least`` or later. Returns where it ends.

        Raises:
            Corruption: it does not match its checksum.
            Retriable: it is older.
            OSError: the disk fails.
        """
        state = unpack_snapshot(bytearray(data))
        if state.revision < least:
            raise Retriable(f"it ends at {state.revision}, and {least} is needed", ErrorCode.NOT_CONTROLLER)
        self._make_new_replicas(state)
        write_note(self._disk, self._data_dir, state.revision)
        self._store.replace_all(state)
        return state.revision

    def _make_new_replicas(self, state: ControllerState) -> None:
        """Make empty logs for the replicas that this broker did not hold by what it knows. What its log has beyond that
        counts as at every start: without files it is new. Raises OSError.
        """
        known, node = self._known(), node_of(self._group.core.replica.me)
        if not known.exists and not self._had_log:
            return  # it knows nothing: what it finds no files of may be lost
        held = {group for group, (topic, index) in known.groups().items() if node in topic.partitions[index].replicas}
        for group, (topic, index) in state.groups().items():
            if group not in held and node in topic.partitions[index].replicas:
                begin_new(self._disk, self._directory_of(topic, index))

    def _put_in_place(self, files: StagedFiles, revision: int) -> None:
        def adopted() -> None:
            self._begin_anew(
                f"the controller's snapshot up to {revision} and its log up to {files.end_offset} were received: this "
                "broker restarts with them"
            )

        try:
            self._adopt(self._group.log, files, adopted)
        except ArenaFull:
            self._reactor.call_later(_AGAIN_US, lambda: self._put_in_place(files, revision))
