"""An unclean cut of one partition, on a broker that holds a replica of it (`core.controller.cutting`).

::

    PartitionCut ──► the replica here is closed, everything of it out of the write-ahead log
        named by the cut    what was put aside is taken back, cut at its last sound batch, opened, leads alone
        any other one       put aside, opened empty; the one that leads fills it

The replica that is named keeps every sound record that it has. It leads only with at least the records that the person
decided on; with fewer it stays as it is, with an ERROR line, and a person decides again.

**An archived topic.** The others may have archived, joined and deleted without this replica, so that its log names
objects that are removed. The object store is asked before it leads (`tiers.newest`): its log then names what is there,
and continues after its own end where the store has more. While the store does not answer, the cut waits.

**Crash.** The next start opens the others empty (`Lifecycle.opened`), and continues here with the one that is named,
until the controller knows that it has led. Commands that are applied again change nothing: a replica that has taken the
cut has a term of it. **Full or failing disk.** It is tried again every `AGAIN_US`. **Overload.** Files are read in
slices of the reactor's background work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from millstream.errors import Corruption, MillstreamError
from millstream.format.epochs import LogState, decode_log_state
from millstream.format.manifest import ArchiveId
from millstream.model.quantities import Offset
from millstream.partition.boundary import words_of
from millstream.partition.partition import Partition
from millstream.partition.table import Adopting, Faulty, Waiting
from millstream.raft.replicated import ReplicatedGroup
from millstream.storage.chunks import holds_chunks
from millstream.storage.log.opening import fence, unfence
from millstream.storage.recovery.cut_back import Kept, cut_back, look
from millstream.storage.recovery.set_aside import is_set_aside, keep_batches
from millstream.storage.recovery.unclean import lost_with_copy, settle, stored_state, take_back
from millstream.telemetry.log import log as operator_log
from millstream.tiers.hot_tier.provider import EVERY_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.config.topic_properties import TopicConfig
    from millstream.core.controller.cuts import Cut
    from millstream.model.events import PartitionIndex
    from millstream.model.quantities import RaftGroupId
    from millstream.model.replication import ReplicaId
    from millstream.partition.lifecycle import Lifecycle
    from millstream.partition.table import PartitionTable
    from millstream.shard.reactor import Reactor
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.messages import Newest

AGAIN_US: Final = 500_000
_SHARE: Final = 0.3


class Places(Protocol):
    """What a cut needs of its shard's partitions (`app.partitions.Partitions`)."""

    repairing: set[int]
    """Raft groups of partitions that are being cut or repaired."""

    def reopen(self, entry: Faulty) -> Partition | Faulty:
        """Open a partition that failed again. Raises OSError if the disk is full."""
        ...

    def cut_of(self, raft_group: RaftGroupId) -> Cut | None:
        """The newest cut of a partition."""
        ...

    def config_of(self, entry: Faulty) -> TopicConfig:
        """The configuration of its topic."""
        ...


class Cutting:
    """One cut on this shard. Lifecycle: started once, when the cut is known; it ends when the cut is done."""

    def __init__(
        self,
        reactor: Reactor,
        storage: ShardStorage,
        table: PartitionTable,
        lifecycle: Lifecycle,
        places: Places,
        topic_id: bytes,
        index: PartitionIndex,
    ) -> None:
        self._reactor = reactor
        self._storage = storage
        self._table = table
        self._lifecycle = lifecycle
        self._places = places
        self._topic_id = topic_id
        self._index = index
        self._found: list[Kept] = []
        self._group = -1
        """Of the partition, while this cut repairs it."""

    @property
    def _owner(self) -> ArchiveId:
        return ArchiveId(UUID(bytes=self._topic_id), self._index)

    def begin(self) -> None:
        """Look at the partition; called again until everything of it is out of the write-ahead log."""
        entry = self._table.find(self._topic_id, self._index)
        if isinstance(entry, Adopting | Waiting) or (
            entry is not None and self._group < 0 and entry.raft_group in self._places.repairing
        ):
            self._reactor.call_later(AGAIN_US, self.begin)
        elif isinstance(entry, Partition | Faulty) and not self._storage.stopping:
            self._close(entry)
        else:
            self._end()

    def _close(self, entry: Partition | Faulty) -> None:
        cut = self._places.cut_of(entry.raft_group)
        if cut is None or (isinstance(entry, Partition) and self._is_taken(entry, cut)):
            self._end()
            return
        self._group = entry.raft_group
        self._places.repairing.add(self._group)
        if isinstance(entry, Partition):
            self._lifecycle.boundary.give_up(entry, "a person has decided on an unclean cut")
            self._reactor.call_soon(self.begin)
            return
        self._lifecycle.stop_voting(entry.raft_group)
        if entry.raft_group in self._storage.checkpointer.failed_logs:
            self._storage.when_set_aside(entry.raft_group, self.begin)
        else:
            self._storage.forget_files(entry.directory, lambda: self._try(self._files))

    def _is_taken(self, partition: Partition, cut: Cut) -> bool:
        group = partition.group
        if not isinstance(group, ReplicatedGroup):
            return True
        if not self._is_named(cut):
            return partition.log.raft.vote.term >= cut.others_term
        if cut.done or partition.log.files.lost:
            return cut.done
        return group.configuration.voters == (self._me,) and group.core.replica.log.last.term >= cut.term

    @property
    def _me(self) -> ReplicaId:
        return self._lifecycle.me

    def _is_named(self, cut: Cut) -> bool:
        return cut.replica == self._me

    def _faulty(self) -> tuple[Faulty, Cut] | None:
        """The partition and its cut, if it is still closed."""
        entry = self._table.find(self._topic_id, self._index)
        cut = self._places.cut_of(entry.raft_group) if isinstance(entry, Faulty) else None
        if not isinstance(entry, Faulty) or cut is None or self._storage.stopping:
            self._end()
            return None
        return entry, cut

    def _try(self, step: Callable[[Faulty, Cut], None]) -> None:
        """Take a step, now or when the disk does it."""
        known = self._faulty()
        if known is None:
            return
        try:
            step(*known)
        except OSError as error:
            operator_log.at(known[0].name).warning("the unclean cut waits: the disk failed: %s", error.strerror)
            self._reactor.call_later(AGAIN_US, lambda: self._try(step))
        except Corruption as error:
            self._refuse(known[0], error.message)

    def _files(self, entry: Faulty, cut: Cut) -> None:
        """No helper has anything of the files in memory."""
        if self._lifecycle.archiver is not None:  # at offsets that are given up other blocks may start from now on
            self._lifecycle.archiver.link.forget(self._owner, Offset(0), EVERY_OFFSET)
        if not cut.is_to_lead(self._lifecycle.me):
            self._places.reopen(entry)  # empty
            self._end()
            return
        taken_back = take_back(self._storage.disk, entry.directory)
        is_whole = not taken_back and not entry.damaged
        if is_whole and not self._is_archived(entry):
            self._opened(self._places.reopen(entry), cut)
            return
        if stored_state(self._storage.disk, entry.directory) is not None:
            self._replay_set_aside(entry)
        else:
            fence(self._storage.disk, entry.directory, entry.reason)  # until its state is whole
            keep_batches(self._storage.disk, entry.directory)
        self._look_then(entry, self._found_end)

    def _replay_set_aside(self, entry: Faulty) -> None:
        try:
            self._storage.registry.replay_set_aside(
                entry.directory, f"{entry.name}/{entry.index}", self._places.config_of(entry), replicated=True
            )
        except Corruption as error:
            operator_log.at(entry.name).warning("what was set aside of it does not follow: %s", error.message)

    def _look_then(self, entry: Faulty, then: Callable[[Faulty, Cut], None]) -> None:
        self._found.clear()
        self._reactor.background("other", self._look(entry), _SHARE, lambda: self._try(then))

    def _look(self, entry: Faulty) -> Generator[None, None, None]:
        try:
            yield from look(self._storage.disk, entry.directory, self._found)
        except (OSError, Corruption) as error:
            operator_log.at(entry.name).warning("its files tell nothing: %s", words_of(error))
        yield

    def _found_end(self, entry: Faulty, cut: Cut) -> None:
        if not self._found:
            self._refuse(entry, "its files tell nothing")
            return
        kept, disk = self._found[0], self._storage.disk
        is_derived = stored_state(disk, entry.directory) is None
        end = kept.replayed_end if is_derived else kept.end_offset
        if end < cut.end_offset and not self._is_archived(entry):
            self._refuse(entry, f"it is sound up to offset {end} only, not up to {cut.end_offset}")
            return
        if not holds_chunks(entry.directory):
            cut_back(disk, entry.directory, kept, keeps_set_aside=is_derived)
        elif kept.needs_cut:
            self._refuse(entry, "its chunks are damaged, and chunks are not cut")
            return
        if self._is_archived(entry):
            self._ask_store(entry)
        else:
            self._settle(entry, cut, None)

    def _is_archived(self, entry: Faulty) -> bool:
        return self._places.config_of(entry).is_archived

    def _ask_store(self, entry: Faulty) -> None:
        """Ask what is archived now."""
        archiver = self._lifecycle.archiver
        assert archiver is not None, "an archived topic without an archive process"
        known = stored_state(self._storage.disk, entry.directory) or LogState()
        shared = self._places.config_of(entry).is_shared
        archiver.link.ask_newest(self._owner, known, self._stored, shared=shared)

    def _stored(self, result: Newest | MillstreamError) -> None:
        known = self._faulty()
        if known is None:
            return
        entry = known[0]
        if isinstance(result, Corruption):
            self._refuse(entry, result.message)
        elif isinstance(result, MillstreamError):
            operator_log.at(entry.name).warning("the unclean cut waits for the object store: %s", result.message)
            self._reactor.call_later(AGAIN_US, lambda: self._try(lambda entry, _: self._ask_store(entry)))
        else:
            if result.missing is not None:
                first, end = result.missing
                name = f"{entry.name}/{entry.index}"
                operator_log.at(name).error("offsets %d to %d are in no object of the store", first, end - 1)
            stored = decode_log_state(result.state)
            self._try(lambda entry, cut: self._settle(entry, cut, stored))

    def _settle(self, entry: Faulty, cut: Cut, stored: LogState | None) -> None:
        """The log is cut, and what is archived is known."""
        disk = self._storage.disk
        if not self._found or (self._found[0].needs_cut and holds_chunks(entry.directory)):
            self._refuse(entry, "its files tell too little")
            return
        end = settle(disk, entry.directory, self._found[0], cut.others_term, stored)
        if is_set_aside(disk, entry.directory):
            self._replay_set_aside(entry)
            if is_set_aside(disk, entry.directory):
                cut_back(disk, entry.directory, self._found[0])
            self._look_then(entry, lambda entry, cut: self._settle(entry, cut, stored))
            return
        unfence(disk, entry.directory)
        if end < cut.end_offset:
            self._refuse(entry, f"it is sound up to offset {end} only, not up to {cut.end_offset}")
        else:
            self._opened(self._places.reopen(entry), cut)

    def _opened(self, entry: Partition | Faulty, cut: Cut) -> None:
        if isinstance(entry, Faulty):
            self._again_or_refuse(entry)
        elif entry.log.files.lost:
            if lost_with_copy(self._storage.disk, entry.log.directory) and not self._found:
                self.begin()  # it was put aside only now: it is taken back
            else:
                operator_log.at(entry.log.name).error("no unclean cut: this replica has nothing of its log")
                self._end()
        elif entry.log.next_offset < cut.end_offset:
            end = entry.log.next_offset
            operator_log.at(entry.log.name).error("no unclean cut: it ends at %d, not at %d", end, cut.end_offset)
            self._end()
        else:
            operator_log.at(entry.log.name).warning(
                "UNCLEAN CUT: leads alone from offset %d on; what only other replicas had is lost",
                entry.log.next_offset,
            )
            self._lifecycle.lead_alone(entry.raft_group)
            self._end()

    def _again_or_refuse(self, entry: Faulty) -> None:
        if entry.damaged and not self._found:
            self._try(self._files)
        else:
            self._refuse(entry, entry.reason)

    def _refuse(self, entry: Faulty, why: str) -> None:
        """A person has to decide again."""
        place = operator_log.at(f"{entry.name}/{entry.index}")
        place.error("no unclean cut: %s; decide on another replica ('millstream topic repair --unclean')", why)
        faulty = Faulty(entry.name, entry.index, entry.raft_group, why, entry.directory)
        if self._table.find(self._topic_id, self._index) is entry:
            self._table.replace(self._topic_id, faulty)
        self._end()

    def _end(self) -> None:
        self._places.repairing.discard(self._group)
