"""What must hold of brokers, whatever fails: a `History` for each Raft group, `Checks` for each life of a replica.

::

    group events ──► Checks ──► History ◄── clients: sent, acknowledged, read, asked for ends
                     (one life)   (whole run)

`Checks` stands before the events that production code set for a group, so that a commit is compared with what others
have committed before anybody acts on it.

==  ==================================================================================================================
A1  A term has one leader.
A2  A leader cuts nothing off its log.
A3  Batches of one offset and term are the same everywhere.
A4  What was committed in a term is in the log of every leader of a later term.
A5  Two replicas have the same committed.
A6  A majority has on disk what a leader calls committed.
A7  A replica votes once a term, and comes back in no older term than it spoke of.
A9  Nothing committed is cut off.
A10 What was durable is there after a crash.
A15 A read barrier sees everything that was committed before it.
B2  Damaged files of one replica are found, and it is filled again by the others (`rot`).
B7  A log start never moves back.
C1  What was acknowledged is committed, and stays.
C4  A reader sees what is committed.
C5  Nothing is committed that no client sent.
C6  A batch of an idempotent producer is committed once, in order.
C7  A reader that follows the newest leader keeps its place.
C8  What is read matches its checksum.
D1  A partition has one owner per generation, and a commit of a former owner is refused (`group_truth`).
D2  Committed offsets of a group never go back.
D4  A transaction is there in whole or not at all, as its producer was told (`transactions`).
D5  After a heal no transaction stays open.
E1  Brokers that applied the same commands of the controller have the same state.
E2  A topic exists from the answer that it was made to its deletion, on every broker.
E3  A reassignment loses nothing, and ends (`admin`).
G4  After a heal everybody agrees.
==  ==================================================================================================================
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.core.raft.messages import VoteReply, VoteRequest
from millstream.errors import Corruption, MillstreamError
from millstream.format.segment import BATCH_CRC_START, parse_batch
from millstream.model.quantities import Offset
from millstream.model.replication import RaftPosition
from millstream.raft.group import GroupRole
from millstream.wire.batch import CONTROL
from millstream.wire.records import HEADER_BYTES, OVERHEAD_BYTES, checksum, unpack_header
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.format.segment import Batch
    from millstream.model.replication import ReplicaId, Term
    from millstream.peers.raft_items import GroupMessage
    from millstream.raft.replicated import ReplicatedGroup
    from millstream.storage.log.entries import SentBatch
    from sim.engine.local_storage import LocalShard


class Committed(NamedTuple):
    """A batch that a replica announced as committed. ``value`` is its timestamp, which the clients number."""

    last_offset: int
    term: int
    crc: int
    value: int


class Known(NamedTuple):
    """A batch in a replica's log."""

    base_offset: int
    batch: Committed
    producer_id: int
    sequence: int
    producer_epoch: int
    is_control: bool


def known(header: tuple[int, ...]) -> Known:
    """A batch from the fields of its header."""
    base, epoch, crc, last_delta, newest = header[0], header[2], header[4], header[6], header[8]
    return Known(
        base,
        Committed(base + last_delta, epoch, crc, newest),
        header[9],
        header[11],
        header[10],
        bool(header[5] & CONTROL),
    )


class History:
    """What clients and replicas of one group have seen.

    Invariant: ``committed`` has the batches of a prefix of the log, but for those that were trimmed before anybody
    announced them.
    """

    def __init__(self, *, may_lose: bool, numbered: bool = True) -> None:
        """``may_lose``: write caching, so that what was acknowledged may be lost with a quorum's memory.
        ``numbered``: each batch has a number of its own, and clients say which they sent.
        """
        self.may_lose = may_lose
        self.numbered = numbered
        self.committed: dict[int, Committed] = {}
        """By base offset."""
        self.top = 0
        """End of what was announced as committed, as an offset."""
        self.sent: set[int] = set()
        self.acknowledged: dict[int, int] = {}
        """Base offset of each value."""
        self.trimmed = 0
        """Highest log start that a client asked for."""
        self.replicas: dict[ReplicaId, Checks] = {}
        """The newest life of each."""
        self._lost: dict[ReplicaId, Checks] = {}
        """The life before its files were lost, of each replica to which that happened: what it said of its disk may
        arrive later, and no replica is elected against it before the replica is whole again."""
        self.promised: dict[ReplicaId, int] = {}
        """Newest term that a message of each replica spoke of."""
        self.deleted = False
        """The deletion of its topic is committed: a broker that comes up before it knows may find it without data, and
        nothing is promised from then on."""
        self.seen: Counter[str] = Counter()
        self._where: dict[int, int] = {}
        self._next_sequence: dict[tuple[int, int], int] = {}
        self._leaders: dict[int, ReplicaId] = {}
        self._votes: dict[tuple[ReplicaId, int], ReplicaId] = {}
        self._crcs: dict[tuple[int, int], int] = {}
        self._committed_in: dict[int, int] = {}
        self._acked_in: dict[int, int] = {}
        self._started_in: dict[int, int] = {}

    # Replicas

    def on_message(self, sender: ReplicaId, to: ReplicaId, message: GroupMessage) -> None:
        """A replica sends a message (A7)."""
        if self.deleted:
            return
        if isinstance(message, VoteRequest):
            if message.pre:
                return
            self._vote(sender, message.term, sender)
        elif isinstance(message, VoteReply):
            if message.pre:
                return
            if message.granted:
                self._vote(sender, message.term, to)
        self.on_term(sender, message.term)

    def on_term(self, sender: ReplicaId, term: int) -> None:
        """A replica tells a peer of a term."""
        if self.deleted:
            return
        if term > self.promised.get(sender, 0):
            self.promised[sender] = term

    def _vote(self, voter: ReplicaId, term: int, candidate: ReplicaId) -> None:
        other = self._votes.setdefault((voter, term), candidate)
        if other != candidate:
            raise Violation(f"A7: {voter} votes for {other} and for {candidate} in term {term}")

    def on_lead(self, replica: ReplicaId, term: int, next_offset: int) -> None:
        """A replica leads (A1, A4)."""
        if self.deleted:
            return
        other = self._leaders.setdefault(term, replica)
        if other != replica:
            raise Violation(f"A1: {other} and {replica} lead term {term}")
        self.seen["election"] += 1
        needed = max((end for of, end in self._committed_in.items() if of < term), default=0)
        if next_offset < needed and not self.may_lose:
            raise Violation(f"A4: {replica} leads term {term} with a log up to {next_offset} of {needed} committed")

    def on_batch(self, replica: ReplicaId, found: Known) -> None:
        """A batch is in a replica's log (A3)."""
        if self.deleted:
            return
        crc = found.batch.crc
        other = self._crcs.setdefault((found.base_offset, found.batch.term), crc)
        if other != crc:
            raise Violation(f"A3: {replica} has {found}, of which another replica has another batch")

    def on_committed(self, replica: ReplicaId, found: Known) -> None:
        """A replica has a committed batch (A5, C5, C6)."""
        if self.deleted:
            return
        base, batch = found.base_offset, found.batch
        before = self.committed.get(base)
        if before is not None:
            if before != batch:
                raise Violation(f"A5: {replica} has {batch} committed at {base}, another one {before}")
            return
        self.committed[base] = batch
        self.top = max(self.top, batch.last_offset + 1)
        if not self.numbered or found.is_control:
            return
        value = batch.value
        if value not in self.sent:
            raise Violation(f"C5: {replica} has {batch} committed at {base}, which no client sent")
        if self.may_lose:
            return
        first = self._where.setdefault(value, base)
        if first != base and first >= self.trimmed:
            raise Violation(f"C6: batch {value} is committed at offsets {first} and {base}")
        if found.producer_id >= 0:
            producer = (found.producer_id, found.producer_epoch)
            expected = self._next_sequence.get(producer, 0)
            if found.sequence != expected and not self.trimmed:
                raise Violation(f"C6: {found} is committed, and its producer's next sequence is {expected}")
            self._next_sequence[producer] = found.sequence + batch.last_offset - base + 1

    def on_leader_commit(self, leader: Checks, term: int, position: RaftPosition, end_offset: int) -> None:
        """A leader announces its commit (A6)."""
        self._committed_in[term] = max(end_offset, self._committed_in.get(term, 0))
        if self.may_lose:
            return
        core = leader.group.core
        of = core.replica.log.term_at(position)
        configuration = core.replica.log.configuration
        for voters in filter(None, (configuration.voters, configuration.outgoing)):
            lives = [(self.replicas.get(voter), self._lost.get(voter)) for voter in voters]
            holding = sum(any(life is not None and life.holds(position, of) for life in both) for both in lives)
            if 2 * holding <= len(voters):
                raise Violation(f"A6: {leader.replica} commits {position}, {holding} of {voters} have it on disk")

    def forget(self, replica: ReplicaId) -> None:
        """A replica has lost its files: its next life has nothing of what it had, and asks the others for a term in
        which no replica leads by a vote that it has forgotten (A1).
        """
        self.lose(replica)
        self.depart(replica)

    def lose(self, replica: ReplicaId) -> None:
        """A replica starts with an empty log, and its vote alone."""
        before = self.replicas.pop(replica, None)
        if before is not None:
            self._lost[replica] = before

    def depart(self, replica: ReplicaId) -> None:
        """A replica was no longer a member, and its files were removed: what it said before no longer binds it."""
        self.replicas.pop(replica, None)
        self.promised.pop(replica, None)
        self._votes = {of: candidate for of, candidate in self._votes.items() if of[0] != replica}

    def delete(self) -> None:
        """A replica was deleted with its topic."""
        self.deleted = self.may_lose = True
        self.replicas.clear()
        self.promised.clear()

    # Clients

    def on_acknowledged(self, value: int, base_offset: int, end_offset: int, term: int) -> None:
        """A client has the answer that its batch is committed (C1)."""
        self.seen["acknowledgement"] += 1
        self.acknowledged[value] = base_offset
        if self.may_lose:
            return
        self._acked_in[term] = max(end_offset, self._acked_in.get(term, 0))
        held = self.committed.get(base_offset)
        if held is None or held.value != value:
            raise Violation(f"C1: batch {value} is acknowledged at offset {base_offset}, where {held} is committed")

    def on_trimmed(self, start: int, term: int) -> None:
        """A client has the answer that the log starts there (B7)."""
        self._started_in[term] = max(start, self._started_in.get(term, 0))

    def on_read(self, reader: str, batch: Batch) -> None:
        """A client has read a batch (C2, C4)."""
        held = self.committed.get(batch.base_offset)
        found = Committed(batch.last_offset, batch.leader_epoch, batch.crc, batch.max_timestamp)
        if held != found and not self.may_lose:
            raise Violation(f"C4: {reader} reads {found} at offset {batch.base_offset}, where {held} is committed")

    def ends(self) -> dict[int, int]:
        """Where the log ends at least, by term of the leader that acknowledged it."""
        return dict(self._acked_in)

    def starts(self) -> dict[int, int]:
        """Where the log starts at least, by term of the leader that said so."""
        return dict(self._started_in)

    # At a heal

    def check_acknowledged(self, replica: ReplicaId, start: int, end: int) -> None:
        """Hold everything that was acknowledged against a replica that has everything committed (C1)."""
        for value, base in self.acknowledged.items():
            held = self.committed.get(base)
            if base >= start and (held is None or held.value != value or base >= end):
                raise Violation(f"C1: the acknowledged batch {value} at offset {base} is lost on {replica}")


def at_least(known: dict[int, int], term: int) -> int:
    """The largest value of ``known`` for a term up to ``term``."""
    return max((value for of, value in known.items() if of <= term), default=0)


class Checks:
    """Checks of one life of one replica.

    Lifecycle: made when the group is open and its owner has set its events. After a crash the object stays as what was
    last known of the replica.
    """

    def __init__(self, history: History, replica: ReplicaId, group: ReplicatedGroup) -> None:
        self.history = history
        self.replica = replica
        self.group = group
        self.log = group.log
        self.announced = group.high_watermark
        """End of what was announced as committed, as an offset."""
        self.replaced_by: RaftPosition | None = None
        """Set while files take the log's place: where they end. No client was promised what is after that."""
        self._uncommitted: deque[Known] = deque()
        """Batches of the log from ``announced`` up to ``known_end``."""
        self.known_end = self.announced
        self._check_start(history.replicas.get(replica))
        self._learn(self.log.next_offset)
        history.replicas[replica] = self
        events = group.events
        self._on_commit, self._on_lead = events.on_commit, events.on_lead
        self._on_truncate, self._on_replicated = events.on_truncate, events.on_replicated
        events.on_commit = self.on_commit
        events.on_lead = self.on_lead
        events.on_truncate = self.on_truncate
        events.on_replicated = self.on_replicated

    def _check_start(self, before: Checks | None) -> None:
        log, replica = self.log, self.replica
        if before is not None:
            durable = before.log.ends.durable.raft_position
            if before.replaced_by is not None:
                durable = min(durable, before.replaced_by)
            if log.next_raft_position < durable:
                raise Violation(f"A10: {replica} comes up at {log.next_raft_position}, was durable to {durable}")
            if log.start_offset < before.log.start_offset:
                raise Violation(f"B7: {replica} starts at {log.start_offset}, was trimmed to {before.log.start_offset}")
        promised = self.history.promised.get(replica, 0)
        if self.group.core.term < promised:
            raise Violation(f"A7: {replica} comes up in term {self.group.core.term}, has spoken of {promised}")

    def holds(self, position: RaftPosition, term: Term | None) -> bool:
        """Whether the replica's log was durable up to there when it was last seen."""
        core = self.group.core
        return core.durable >= position and (position <= core.base or core.replica.log.term_at(position) == term)

    def look(self) -> None:
        """Note what a leader has appended, as long as its cache has it; not while an end of its log is to be cut."""
        group = self.group
        if group.closed:
            return
        waiting = group._writes.waiting  # pyright: ignore[reportPrivateUsage]
        if self.log.next_offset > self.known_end and group.core.leads and not waiting:
            self._learn(self.log.next_offset)

    # What the group announces

    def on_commit(self, high_watermark: int) -> None:
        """The high watermark has moved."""
        history, group = self.history, self.group
        self._learn(high_watermark)
        batches = self._uncommitted
        while batches and batches[0].batch.last_offset < high_watermark:
            found = batches.popleft()
            if not history.may_lose:
                history.on_committed(self.replica, found)
        self.announced = high_watermark
        if group.role is GroupRole.LEADING and group.core.leads:
            history.on_leader_commit(self, group.term, group.committed_position, group.committed_offset)
        self._on_commit(Offset(high_watermark))

    def _learn(self, end_offset: int) -> None:
        """Read the headers of the log up to ``end_offset``, from memory or from the segments."""
        log = self.log
        self.known_end = max(self.known_end, log.start_offset)
        while self.known_end < end_offset:
            found = log.read(Offset(self.known_end), Offset(end_offset), 1 << 30, minimum_one=True)
            if found is None:
                # What stands behind it may be about to be cut off.
                # A damaged header ends it. What is after it is known once the log was emptied and filled again.
                with suppress(Corruption):
                    log.replay_headers(Offset(self.known_end), lambda header: self._add(header, end_offset))
                return
            data = memoryview(found.copy(0, len(found)))
            found.release()
            at = 0
            while at < len(data):
                header = unpack_header(data, at)
                self._add(header)
                at += header[1] + OVERHEAD_BYTES
            if not data:
                raise Violation(f"A5: {self.replica} announces {end_offset}, and its log ends at {self.known_end}")

    def _add(self, header: tuple[int, ...], end_offset: int = 1 << 63) -> None:
        found = known(header)
        if self.known_end <= found.batch.last_offset < end_offset:
            self.known_end = found.batch.last_offset + 1
            self._uncommitted.append(found)
            self.history.on_batch(self.replica, found)

    def on_lead(self, term: Term) -> None:
        """The replica leads."""
        self.history.on_lead(self.replica, term, self.log.next_offset)
        self._on_lead(term)

    def on_truncate(self, offset: Offset) -> None:
        """The log is about to be cut (A2, A9)."""
        self.history.seen["truncation"] += 1
        if self.log.next_offset - offset > 1:
            self.history.seen["truncation of several records"] += 1
        if offset < self.announced and not self.history.may_lose:
            raise Violation(f"A9: {self.replica} cuts to {offset} below its committed end {self.announced}")
        if self.group.role is GroupRole.LEADING:
            raise Violation(f"A2: {self.replica} cuts its log to {offset} while it leads")
        self.announced = min(self.announced, offset)
        self.known_end = min(self.known_end, offset)
        while self._uncommitted and self._uncommitted[-1].base_offset >= offset:
            self._uncommitted.pop()
        self._on_truncate(offset)

    def on_replicated(self, batches: Sequence[SentBatch]) -> None:
        """Batches of another leader are in the log."""
        if batches:
            self._learn(batches[0].base_offset)
        for batch in batches:
            head = batch.views[0]
            self._add(unpack_header(head if len(head) >= HEADER_BYTES else memoryview(b"".join(batch.views)), 0))
        self._on_replicated(batches)

    def compare_whole(self, data: memoryview, offset: int) -> int:
        """Hold the batches of ``data``, the first of which has ``offset``, against what others have committed; the
        offset at which they end. Everybody agrees by now, with write caching, too.
        """
        at = 0
        while at < len(data):
            header = unpack_header(data, at)
            found = known(header)
            last_offset = found.batch.last_offset
            if not found.base_offset <= offset <= last_offset or (at and found.base_offset != offset):
                raise Violation(f"{self.replica} has offset {found.base_offset} after the end {offset}")
            self.history.on_committed(self.replica, found)
            check_sum(self.replica, data[at : at + header[1] + OVERHEAD_BYTES], found)
            at += header[1] + OVERHEAD_BYTES
            offset = last_offset + 1
        return offset


def check_sum(where: object, batch: memoryview, of: object) -> None:
    """Check that a whole batch matches its checksum (C8)."""
    if checksum([batch], BATCH_CRC_START) != unpack_header(batch, 0)[4]:
        raise Violation(f"C8: {where} has {of}, which does not match its checksum")


READ_BYTES: Final = 1 << 20


def whole_log(shard: LocalShard, checks: Checks, start: Offset | None = None) -> Iterator[memoryview]:
    """Everything that is committed, from the log's start or from ``start`` on, in whole batches: from memory or from
    the segments.
    """
    log = checks.log
    offset, end = int(log.start_offset if start is None else start), checks.group.high_watermark
    while offset < end:
        found: Any = log.read(Offset(offset), Offset(end), READ_BYTES, minimum_one=True)
        if found is None:
            found = shard.call(log.read_cold, Offset(offset), Offset(end), READ_BYTES, True)
        if isinstance(found, MillstreamError):
            raise Violation(f"{checks.replica} can't read offset {offset} of {end}: {found}")
        data = memoryview(found.copy(0, len(found)))
        found.release()
        if not data:
            raise Violation(f"A5: {checks.replica} has announced {end}, and its log ends at {offset}")
        yield data
        at = 0
        while at < len(data):
            batch = parse_batch(data, at, at, len(data))
            at += batch.size
            offset = batch.last_offset + 1
