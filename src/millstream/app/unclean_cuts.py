"""``topic repair --unclean``: a person decides that the replica of this broker is the partition's log from now on.

::

    POST /v1/partitions/repair ──► home shard ──who leads? ──► every other broker that is alive
       with unclean_from              │ no one
                                      ├──► plan: where the replica's log ends, what of it is damaged
                                      └──execute──► CutPartition ──► controller's log ──► all brokers: `replica.cutting`
                                                        └──► answered when the replica here leads

It is for a partition that has no leader and will get none: every replica is damaged or has failed, or those that are
left are no majority. Records that this replica lacks are lost, acknowledged ones among them, unless the object store
has them: of an archived topic it is asked for the plan, and again before the replica leads. While it does not answer
the cut is refused. Records that the replica's log names and that no object has are counted in the plan.

**Bad input.** A partition that has a leader, or of which another broker does not say that it has none, is refused; so
are one with a single replica (the plain repair cuts it back), and a broker that is not the one that was named.
**Crash.** Before the controller has decided nothing has changed; afterwards each broker that starts carries it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from millstream.admin.bodies import Repaired
from millstream.core.controller.brokers import too_low
from millstream.core.controller.commands import CUTTING_PARTITIONS
from millstream.core.controller.requests import CutPartition
from millstream.errors import Corruption, MillstreamError, OutcomeUnknown, Rejected, Retriable
from millstream.format.epochs import LogState, decode_log_state
from millstream.format.manifest import ArchiveId
from millstream.format.names import DAMAGED_SUFFIX
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, Term, node_of
from millstream.partition.partition import Partition
from millstream.raft.replicated import ReplicatedGroup
from millstream.storage.chunks import holds_chunks
from millstream.storage.recovery.cut_back import Kept, look
from millstream.storage.recovery.unclean import is_superseded, lost_with_copy, stored_state
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.admin.bodies import RepairAsked
    from millstream.app.partitions import Partitions
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.leading_brokers import Answers, LeadingBrokers
    from millstream.cluster.metadata import MetadataCache
    from millstream.cluster.topic_table import PartitionMeta
    from millstream.core.controller.requests import Results
    from millstream.partition.table import Faulty, PartitionTable
    from millstream.shard.reactor import Reactor
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.messages import Newest

_LOOK_US: Final = 200_000
_LED_US: Final = 300_000_000
"""How long a cut may take before its answer says that it continues."""

_SHARE: Final = 0.3


class UncleanCuts:
    """What the cuts of one shard share. Lifecycle: made with the shard of a broker of a cluster."""

    def __init__(
        self,
        reactor: Reactor,
        storage: ShardStorage,
        table: PartitionTable,
        partitions: Partitions,
        metadata: MetadataCache,
        client: ControllerClient,
        leading: LeadingBrokers,
        archives: ArchiveLink,
    ) -> None:
        self.archives = archives
        self.reactor = reactor
        self.storage = storage
        self.table = table
        self.partitions = partitions
        self.metadata = metadata
        self.client = client
        self.leading = leading

    def ask(self, entry: Partition | Faulty, asked: RepairAsked, answer: Callable[[Any], None]) -> None:
        """Plan a cut, or have it decided. Raises Rejected if it cannot be."""
        where, node = f"{asked.topic}:{asked.partition}", self.metadata.node_id
        if asked.unclean_from != node:
            raise Rejected(f"this is broker {node}: ask broker {asked.unclean_from}, whose replica is to be taken")
        part = self.metadata.partition(asked.topic, asked.partition)
        if part is None or len(part.replicas) < 2:
            raise Rejected(f"{where} has one replica alone; repair it without --unclean")
        if self.metadata.state.feature_level < CUTTING_PARTITIONS:
            words = too_low(self.metadata.state, "partitions are cut uncleanly", CUTTING_PARTITIONS)
            raise Rejected(words, ErrorCode.UNSUPPORTED_VERSION)
        if entry.raft_group in self.partitions.repairing:
            raise Retriable(f"{where} is being repaired")
        self.ask_who_leads(entry, asked, _Unclean(self, entry, asked, answer).heard)

    def ask_who_leads(self, entry: Partition | Faulty, asked: RepairAsked, heard: Callable[[Answers], None]) -> None:
        """Ask the other brokers that are alive whether they lead. Raises Rejected if this one knows a leader."""
        where = f"{asked.topic}:{asked.partition}"
        part = self.metadata.partition(asked.topic, asked.partition)
        if part is None or self.table.find(asked.topic, asked.partition) is not entry:
            raise Retriable(f"{where} is being opened, closed or deleted: try again")
        if isinstance(entry, Partition):
            group = entry.group
            if group.is_serving:
                raise Rejected(f"{where} is led by this broker; there is nothing to cut")
            if isinstance(group, ReplicatedGroup) and group.leader != NO_REPLICA:
                raise Rejected(f"{where} is led by broker {node_of(group.leader)}; there is nothing to cut")
        self.ask_others(part, heard)

    def ask_others(self, part: PartitionMeta, heard: Callable[[Answers], None]) -> None:
        """Ask the other brokers that are alive and hold the partition whether they lead it."""
        me = self.metadata.node_id
        others = [NodeId(each) for each in part.replicas if each != me and self.metadata.is_alive(each)]
        self.leading.ask(part.raft_group, others, heard)


class _Unclean:
    """One cut, from the question to the answer."""

    def __init__(
        self, cuts: UncleanCuts, entry: Partition | Faulty, asked: RepairAsked, answer: Callable[[Any], None]
    ) -> None:
        self._cuts = cuts
        self._entry = entry
        self._asked = asked
        self._answer = answer
        self._found: list[Kept] = []
        self._where = f"{asked.topic}:{asked.partition}"
        self._left_us = _LED_US
        self._end: Offset | None = None
        """Where the log would end, once that is known."""
        self._missing = 0

    def heard(self, said: Answers) -> None:
        """The other brokers have said whether they lead."""
        if said.leaders:
            repair = "a repair without --unclean has it filled from there"
            self._answer(Rejected(f"{self._where} is led by broker {said.leaders[0]}: {repair}"))
        elif said.silent:
            silent = said.silent[0]
            words = f"broker {silent} is alive and does not say whether it leads {self._where}: try again, or stop it"
            self._answer(Retriable(words, ErrorCode.BROKER_NOT_AVAILABLE))
        elif self._end is None:
            self._cuts.reactor.background("other", self._look(), _SHARE, self._planned)
        else:
            self._submit(self._end)

    def _directory(self) -> str | None:
        """Where the replica's log is, if that has to be read."""
        entry, disk = self._entry, self._cuts.storage.disk
        if isinstance(entry, Partition):
            if not entry.log.files.lost:
                return None
            return entry.log.directory + DAMAGED_SUFFIX
        if lost_with_copy(disk, entry.directory):
            return entry.directory + DAMAGED_SUFFIX
        return entry.directory if entry.damaged else None

    def _look(self) -> Generator[None, None, None]:
        directory = self._directory()
        if directory is not None:
            try:
                yield from look(self._cuts.storage.disk, directory, self._found)
            except (OSError, Corruption) as error:
                operator_log.at(self._where).warning("its files tell nothing: %s", error)
        yield

    def _planned(self) -> None:
        entry = self._entry
        directory = self._directory()
        if directory is not None and (not self._found or (holds_chunks(directory) and self._found[0].needs_cut)):
            why = "chunks are not cut" if holds_chunks(directory) else "its files tell nothing"
            words = f"this broker's replica of {self._where} cannot be taken: {why}"
            self._answer(Rejected(words, ErrorCode.KAFKA_STORAGE_ERROR))
            return
        if self._found:
            end = self._found[0].replayed_end
        else:
            end = entry.log.durable_offset if isinstance(entry, Partition) else Offset(-1)
        if self._cuts.metadata.topic_config(self._asked.topic).is_archived:
            self._ask_store(end, directory)
        else:
            self._has_end(end)

    def _ask_store(self, end: Offset, directory: str | None) -> None:
        """What is archived counts, too. ``directory``: of ``_directory``."""
        entry = self._entry
        log = entry.log if isinstance(entry, Partition) and not entry.log.files.lost else None
        if isinstance(entry, Partition) and entry.archive is not None and log is not None:
            known = entry.archive.as_state()
        else:
            known = stored_state(self._cuts.storage.disk, directory or self._entry_directory()) or LogState()
        topic = self._cuts.metadata.topic(self._asked.topic)
        if topic is None:
            self._answer(Rejected(f"{self._where} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return

        def answered(result: Newest | MillstreamError) -> None:
            if isinstance(result, MillstreamError):
                self._answer(result)
                return
            stored = decode_log_state(result.state)
            if result.missing is not None:
                self._missing = result.missing[1] - result.missing[0]
            older = log is not None and is_superseded(
                log.leader_epochs, max(log.first_local_offset, log.start_offset), stored
            )
            self._has_end(stored.local_start if older else max(end, stored.local_start))

        owner = ArchiveId(UUID(bytes=topic.topic_id), PartitionIndex(self._asked.partition))
        self._cuts.archives.ask_newest(owner, known, answered, shared=topic.config.is_shared)

    def _entry_directory(self) -> str:
        entry = self._entry
        return entry.log.directory if isinstance(entry, Partition) else entry.directory

    def _has_end(self, end: Offset) -> None:
        """Where the log would end is known; -1 if that shows only when it is opened."""
        entry = self._entry
        if not self._asked.execute:
            self._tell(end, done=False)
            return
        self._end = end
        try:  # a leader may have been elected since, and may have cut this log
            self._cuts.ask_who_leads(entry, self._asked, self.heard)
        except MillstreamError as error:
            self._answer(error)

    def _submit(self, end: Offset) -> None:
        """No other broker leads now: have the cut decided."""
        entry = self._entry
        term = entry.group.term if isinstance(entry, Partition) else 0
        part = self._cuts.metadata.partition(self._asked.topic, self._asked.partition)
        known = max(term, part.leader_epoch if part is not None else 0)
        node = NodeId(self._cuts.metadata.node_id)
        request = CutPartition(self._asked.topic, self._asked.partition, node, Term(known), end, self._asked.reason)
        operator_log.at(self._where).warning("asked over HTTP for an unclean cut to this replica's log")
        self._cuts.client.submit(request, self._decided)

    def _decided(self, results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            self._answer(results)
        elif results[0].error:
            self._answer(Rejected(results[0].message or "refused", ErrorCode(results[0].error)))
        else:
            self._wait()

    def _wait(self) -> None:
        """Until the replica here leads."""
        entry = self._cuts.table.find(self._asked.topic, self._asked.partition)
        if isinstance(entry, Partition) and entry.group.is_serving:
            self._tell(entry.log.next_offset, done=True)
        elif entry is None:
            self._answer(Rejected(f"{self._where} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif self._is_refused(entry):
            words = f"it was decided on, but this replica does not lead: see the log of this broker; {self._why(entry)}"
            self._answer(Rejected(words, ErrorCode.KAFKA_STORAGE_ERROR))
        elif self._left_us <= 0:
            self._answer(OutcomeUnknown("the cut is decided on, and continues"))
        else:
            self._left_us -= _LOOK_US
            self._cuts.reactor.call_later(_LOOK_US, self._wait)

    def _is_refused(self, entry: object) -> bool:
        """The cut has ended here, and this replica cannot lead."""
        group: int = self._entry.raft_group
        if group in self._cuts.partitions.repairing:
            return False
        return not isinstance(entry, Partition) or entry.log.files.lost

    def _why(self, entry: object) -> str:
        return getattr(entry, "reason", "it has nothing of its log")

    def _tell(self, end_offset: int, *, done: bool) -> None:
        asked, entry = self._asked, self._entry
        lost = self._found[0].lost if self._found else 0
        reason = "no replica leads it" if isinstance(entry, Partition) else entry.reason
        repaired = Repaired(asked.topic, asked.partition, reason, "unclean", end_offset, lost, done, self._missing)
        self._answer(msgspec.to_builtins(repaired))
