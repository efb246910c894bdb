"""``topic repair``: what would bring a partition back that is not served, and doing it.

::

    POST /v1/partitions/repair ──► the shard that is its home ──► plan ──execute──► repair
                                                                                     │
       failed in a verb                 opened again, with what was put aside of it ─┤ loses nothing
       damaged, one of several replicas put aside, starts empty; its leader fills it ┤ loses nothing
       ``epochs`` of the only replica   derived from its batches and the store ──────┤ loses what the plan says
       damaged, the only replica        cut back to its last sound batch ────────────┘ loses what the plan says

Files are put aside only while another broker leads. Without a leader they may be all that there is: of a partition that
moves from one broker to several, or whose other replicas are damaged, too.

The only replica leads in a new term after the last two, above each that it may have led in. What is archived of it
the object store says. Records that were put aside stay if they follow its last sound batch. No replica leads, and none
will: `unclean_cuts`.

A plan changes nothing. A repair first opens the partition again, because the damage may be gone; only then it does what
the plan says. It waits until the write-ahead log holds nothing of the partition.

**Bad input.** A partition that is served or does not exist is refused. **Crash.** The next start opens what is
there; the repair may be called again. **Overload.** The files are read in slices of the reactor's background work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.admin.bodies import RepairAsked, Repaired
from millstream.core.controller.cutting import TERM_GAP
from millstream.errors import Corruption, MillstreamError, Rejected, Retriable
from millstream.format.epochs import LogState, decode_log_state
from millstream.format.names import DAMAGED_SUFFIX
from millstream.model.error_code import ErrorCode
from millstream.model.replication import Term
from millstream.partition.boundary import words_of
from millstream.partition.partition import Partition
from millstream.partition.table import Faulty, Remote
from millstream.storage.chunks import holds_chunks
from millstream.storage.log.lost import put_aside
from millstream.storage.log.opening import fence, repair_note, unfence
from millstream.storage.recovery.cut_back import Kept, cut_back, look
from millstream.storage.recovery.set_aside import is_set_aside, keep_batches, vote_set_aside
from millstream.storage.recovery.unclean import lost_with_copy, settle, stored_state, take_back
from millstream.storage.segments.files import names_in
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.app.partitions import Partitions
    from millstream.app.shard_queries import ShardQueries
    from millstream.app.unclean_cuts import UncleanCuts
    from millstream.cluster.leading_brokers import Answers
    from millstream.partition.table import PartitionTable
    from millstream.shard.control import ControlEnd
    from millstream.shard.reactor import Reactor
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.messages import Newest

REPAIR: Final = "repair"
"""The question on the control channel."""

LEADER_US: Final = 10_000_000
"""How long a repair waits for a leader: an election takes less, unless no majority is there."""

_AGAIN_US: Final = 500_000
_TIMEOUT_US: Final = 600_000_000
_SHARE: Final = 0.3


def serve_repairs(
    control: ControlEnd,
    reactor: Reactor,
    storage: ShardStorage,
    table: PartitionTable,
    partitions: Partitions,
    unclean: UncleanCuts | None,
) -> None:
    """Answer on a shard; None about partitions of other shards. ``unclean`` is for brokers of a cluster."""

    def repair(arguments: Any, answer: Callable[[Any], None]) -> None:
        asked = msgspec.convert(arguments, RepairAsked)
        entry = table.find(asked.topic, asked.partition)
        if entry is None:
            raise Rejected(f"there is no partition {asked.topic}:{asked.partition}", _UNKNOWN)
        if isinstance(entry, Remote):
            answer(None)
        elif asked.unclean_from is not None:
            if unclean is None:
                raise Rejected("this is a single broker: repair the partition without --unclean")
            unclean.ask(entry, asked, answer)
        elif isinstance(entry, Partition):
            raise Rejected(f"{asked.topic}:{asked.partition} is served; there is nothing to repair")
        elif entry.raft_group in partitions.repairing:
            raise Retriable(f"{asked.topic}:{asked.partition} is being repaired")
        else:
            Repair(reactor, storage, partitions, unclean, entry, asked, answer).begin()

    control.serve(REPAIR, repair)


_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class Repair:
    """One repair, from the question to the answer."""

    def __init__(
        self,
        reactor: Reactor,
        storage: ShardStorage,
        partitions: Partitions,
        unclean: UncleanCuts | None,
        entry: Faulty,
        asked: RepairAsked,
        answer: Callable[[Any], None],
    ) -> None:
        """``unclean`` knows the other brokers, in a cluster."""
        self._reactor = reactor
        self._storage = storage
        self._partitions = partitions
        self._unclean = unclean
        self._patience_us = LEADER_US
        """How long the repair still waits for a leader that can fill the replica."""
        self._entry = entry
        self._asked = asked
        self._reply = answer
        self._found: list[Kept] = []
        self._known_end = 0
        """The log went to here before the repair, exclusive, as far as its files say."""
        self._step = "open"
        partitions.repairing.add(entry.raft_group)

    def _answer(self, answer: Any) -> None:
        self._partitions.repairing.discard(self._entry.raft_group)
        self._reply(answer)

    def begin(self) -> None:
        """Wait until everything of the partition is out of the write-ahead log, then look."""
        storage, entry = self._storage, self._entry
        if self._asked.execute:
            self._partitions.stop_voting(entry)  # what it has voted is set aside with the rest
        if storage.stopping:
            self._answer(Retriable("the broker stops"))
        elif entry.raft_group in storage.checkpointer.failed_logs:
            storage.when_set_aside(entry.raft_group, self.begin)
        else:
            storage.forget_files(entry.directory, self._look)

    def _look(self) -> None:
        """No helper has anything of its files in memory: open it, or plan."""
        if not self._asked.execute or not self._reopened():
            self._try(self._begin_plan)

    def _begin_plan(self) -> None:
        entry = self._entry
        if self._asked.execute and not self._partitions.has_others(entry):
            take_back(self._storage.disk, entry.directory)
        self._reactor.background("other", self._plan(), _SHARE, self._planned)

    def _reopened(self) -> bool:
        """Open the partition again, as it is; whether that was all."""
        try:
            opened = self._partitions.reopen(self._entry)
        except OSError as error:
            self._answer(Retriable(f"the disk is full: {error}"))
            return True
        if isinstance(opened, Partition):
            operator_log.at(opened.log.name).info("repaired (%s): it ends at %d", self._step, opened.log.next_offset)
            self._tell(done=True, end_offset=opened.log.next_offset)
            return True
        self._entry = opened
        return False

    def _plan(self) -> Generator[None, None, None]:
        entry, disk = self._entry, self._storage.disk
        is_away = lost_with_copy(disk, entry.directory)
        if not entry.damaged and not is_away:
            return
        if self._partitions.has_others(entry):
            self._step = "install"
            return
        directory = entry.directory + (DAMAGED_SUFFIX if is_away else "")
        self._step = "derive" if stored_state(disk, directory) is None else "cut"
        yield from self._look_in(directory)
        if holds_chunks(directory) and (not self._found or self._found[0].needs_cut):
            self._step = "open"  # chunks are not cut; a backup has them

    def _look_in(self, directory: str) -> Generator[None, None, None]:
        self._found.clear()
        try:
            if names_in(self._storage.disk, directory) or self._is_archived():
                yield from look(self._storage.disk, directory, self._found)
                self._known_end = max(self._known_end, *(one.known_end for one in self._found))
        except (OSError, MillstreamError) as error:
            operator_log.at(self._entry.name).warning("its files tell nothing: %s", words_of(error))

    def _is_archived(self) -> bool:
        return self._partitions.config_of(self._entry).is_archived

    def _planned(self) -> None:
        part = self._partitions.metadata_of(self._entry)
        if self._step == "install" and self._unclean is not None and part is not None:
            self._unclean.ask_others(part, self._heard)
        else:
            self._carry_out()

    def _heard(self, said: Answers) -> None:
        """The other brokers have said whether they lead. Without a leader the files here may be all that there is."""
        if said.leaders:
            self._carry_out()
        elif self._patience_us > 0:
            self._patience_us -= _AGAIN_US
            self._reactor.call_later(_AGAIN_US, self._planned)
        else:
            where = f"{self._asked.topic}:{self._asked.partition}"
            words = f"no other broker leads {where} and could fill this replica: try again once one does, or have the "
            words += "partition continue from the replica that has most, by --unclean --from BROKER"
            self._answer(Rejected(words, ErrorCode.KAFKA_STORAGE_ERROR))

    def _carry_out(self) -> None:
        if not self._asked.execute:
            is_known = self._found and (self._found[0].segment or not self._is_archived())
            self._tell(done=False, end_offset=self._found[0].replayed_end if is_known else -1)
        elif self._step == "open":
            self._answer(Rejected(f"it cannot be opened: {self._entry.reason}", ErrorCode.KAFKA_STORAGE_ERROR))
        elif self._step == "install":
            self._try(self._install)
        elif not self._found:
            self._answer(Rejected("its files tell nothing; restore them from a backup", ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            self._try(self._cut)

    def _try(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except OSError as error:
            self._answer(Retriable(f"the disk failed: {error}"))
        except MillstreamError as error:
            self._answer(error)

    def _install(self) -> None:
        entry, disk = self._entry, self._storage.disk
        note = repair_note(f"{entry.name}/{entry.index}", self._storage.stats)
        put_aside(disk, entry.directory, entry.reason, note, vote_set_aside(disk, entry.directory))
        self._open()

    def _open(self) -> None:
        unfence(self._storage.disk, self._entry.directory)
        if not self._reopened():
            self._answer(Rejected(f"it is not served yet: {self._entry.reason}", ErrorCode.KAFKA_STORAGE_ERROR))

    def _cut(self) -> None:
        """Let the segments end at the last sound batch, and ask what is archived."""
        entry, disk = self._entry, self._storage.disk
        fence(disk, entry.directory, entry.reason)  # until its state is whole
        if self._step == "derive":
            keep_batches(disk, entry.directory)
        if not holds_chunks(entry.directory):
            cut_back(disk, entry.directory, self._found[0], keeps_set_aside=True)
        if self._is_archived():
            self._partitions.ask_store(entry, stored_state(disk, entry.directory) or LogState(), self._stored)
        else:
            self._settle(None)

    def _stored(self, result: Newest | MillstreamError) -> None:
        if isinstance(result, MillstreamError):
            self._answer(result)
        else:
            state = decode_log_state(result.state)
            self._try(self._settle, state if state.local_start or not self._found[0].segment else None)

    def _settle(self, stored: LogState | None) -> None:
        self._settle_log(stored)
        if not is_set_aside(self._storage.disk, self._entry.directory):
            self._open()
            return
        entry = self._entry
        try:
            self._partitions.replay_set_aside(entry)
        except Corruption as error:
            operator_log.at(entry.name).warning("what was set aside of it does not follow: %s", error.message)
            cut_back(self._storage.disk, entry.directory, self._found[0])
            self._settle_again(stored)
            return
        self._reactor.background(
            "other", self._look_in(entry.directory), _SHARE, lambda: self._try(self._settle_again, stored)
        )

    def _settle_again(self, stored: LogState | None) -> None:
        """What was set aside is in the segments."""
        self._settle_log(stored)
        self._open()

    def _settle_log(self, stored: LogState | None) -> None:
        entry = self._entry
        if not self._found:
            raise Rejected("its files tell nothing; restore them from a backup", ErrorCode.KAFKA_STORAGE_ERROR)
        if self._found[0].needs_cut and holds_chunks(entry.directory):
            raise Rejected("its chunks are damaged, and chunks are not cut", ErrorCode.KAFKA_STORAGE_ERROR)
        term = Term(self._partitions.known_term(entry) + (TERM_GAP if self._step == "derive" else 0))
        settle(self._storage.disk, entry.directory, self._found[0], term, stored, alone=True)

    def _tell(self, *, done: bool, end_offset: int) -> None:
        lost = max(0, self._known_end - end_offset) if end_offset >= 0 else 0
        asked = self._asked
        repaired = Repaired(asked.topic, asked.partition, self._entry.reason, self._step, end_offset, lost, done)
        self._answer(msgspec.to_builtins(repaired))


def repair_partition(queries: ShardQueries, asked: RepairAsked) -> dict[str, Any]:
    """Plan a repair, or do it.

    Raises:
        Rejected: there is nothing to repair.
        MillstreamError: it was not done.
    """
    if asked.execute:
        how = "" if asked.unclean_from is None else " by an unclean cut"
        operator_log.info("asked over HTTP to repair %s:%d%s", asked.topic, asked.partition, how)
    for answer in queries.ask_all(REPAIR, msgspec.to_builtins(asked), _TIMEOUT_US):
        if answer is not None:
            return answer
    where = f"{asked.topic}:{asked.partition}"
    raise Rejected(f"this broker has no replica of {where}; ask one that has", ErrorCode.NOT_LEADER_OR_FOLLOWER)
