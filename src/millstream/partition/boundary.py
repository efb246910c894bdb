"""The boundary of a partition: where an exception that no verb raises ends the partition, and nothing else.

A *verb* of a partition (append, marker, read, trim, archive entry, checkpoint, write behind, compaction, change of its
configuration) raises what its docstring says, and its callers expect that. Anything else is a bug or damage that no
check has found, and the state of this partition cannot be trusted. Each *entry* of the reactor that runs a verb catches
it and calls `Boundary.failed`, by ``Partition.failed``, ``OpenLog.failed`` or ``OpenLog.guard``; verbs do not catch.
``tests/unit/partition/test_boundary_entries.py`` lists the entries. Helper processes have a boundary of their own
(``storage.processes.boundary``) and report to this one.

::

    entry ─► verb ─✗─► Boundary.failed ──at once──► gate FAILED, log cut off: nothing of it changes from here on
                            │                        the turn's tick is whole records again, memory set aside is back
                            └─────────in its own turn─► who waits is answered, group and archive closed, memory given
                                                        back, the table's entry is `Faulty`

What a verb may have changed of what partitions share, and what undoes it:

======================  ====================================================================================
write-ahead log's turn  ``Wal.mend`` cuts the tick back to whole records. Records of the partition in it stay
                        and become durable; its log says what they are (``recovery.set_aside``)
log cache, arena        ranges belong to the log's cache: ``ShardStorage.forget`` gives all of them back when
                        no frame needs their bytes; a running write to a segment keeps its own until then. What was
                        set aside for an append is put back
write-ahead log's files its records go to a file of the partition at the next checkpoint, so that it holds
                        no frame
parked requests         answered: batches that were appended, and deletions, with REQUEST_TIMED_OUT, because
                        their outcome is unknown; those that wait to be appended with KAFKA_STORAGE_ERROR
producers' budget       given back
coordinators            notified that the partition closes, as when another replica is to lead
======================  ====================================================================================

**What is a fault of the shard.** An exception that was raised by the shared structures themselves (write-ahead log,
arena, rings, reactor, checkpoints), an undoing that raises, and any exception of the controller's log: the shard stops.

**Promises.** A partition that failed answers KAFKA_STORAGE_ERROR, appends and acknowledges nothing, and pins nothing.
What was acknowledged is in its segments, its ``quarantine`` file or the write-ahead log: a start, or ``millstream topic
repair``, opens it again with all of it. There is one ERROR line with the traceback; later exceptions of the same
partition are consequences and are not logged. In a cluster the replica leads and acknowledges no more, and another
replica leads; it votes on from its durable term (``raft.failed_voter``), until a repair or the next start. One that
could not be opened at a start is silent. **Crash.** As any crash.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.format.events.chunk import log_directory
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.partition.table import Faulty
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.shard.reactor import Reactor
    from millstream.storage.shard_storage import ShardStorage

SHARED: Final = (
    "millstream.iobuf",
    "millstream.shard",
    "millstream.storage.maintenance.checkpoint",
    "millstream.storage.wal",
)
"""Modules of structures that partitions share: an exception raised in one of them is the shard's."""

PASSED_THROUGH: Final = frozenset({"add_note"})
"""Functions of those modules that refuse what a verb passes before they change anything."""


class Boundary:
    """The boundary of one shard's partitions.

    Lifecycle: made with the shard's partitions; ``watch`` for each. Shard: one each.
    """

    def __init__(
        self,
        reactor: Reactor,
        storage: ShardStorage,
        table: PartitionTable,
        steps: Sequence[Callable[[Partition], None]],
    ) -> None:
        """``steps`` take down what a partition has beside its log: its archive, its group."""
        self._reactor = reactor
        self._storage = storage
        self._table = table
        self._steps = steps

    def watch(self, partition: Partition) -> None:
        """Stand around a partition that was just opened."""
        partition.log.owner.on_failed = partial(self.failed, partition)

    def failed(self, partition: Partition, verb: str, error: Exception) -> None:
        """A verb of a partition has raised ``error``, which is being handled: end the partition.

        Raises:
            Exception: ``error``, if it is the shard's fault.
            AssertionError: what the verb has left cannot be undone.
        """
        if is_of_the_shard(error):
            raise error
        if partition.has_failed:
            return
        place = operator_log.at(partition.log.name)
        place.exception("failed in %s: %s; not served until the next start or a repair", verb, words_of(error))
        self._storage.stats.counter("partition_failures").inc()
        if partition.closed:
            return
        partition.fail()
        partition.group.halt()
        self._storage.cut_off(partition.log)
        self._reactor.call_soon(self._take_down, partition, f"failed in {verb}: {words_of(error)}")

    def give_up(self, partition: Partition, reason: str) -> None:
        """Stop to serve a partition that nothing is wrong with, as if it had failed: its files are about to be
        replaced. No effect on one that has failed or is closed.
        """
        if partition.has_failed or partition.closed:
            return
        operator_log.at(partition.log.name).warning("not served for a moment: %s", reason)
        partition.fail()
        partition.group.halt()
        self._storage.cut_off(partition.log)
        self._reactor.call_soon(self._take_down, partition, reason)

    def _take_down(self, partition: Partition, reason: str) -> None:
        """Give back what the partition holds, and answer who waits for it."""
        log = partition.log
        events = partition.config.has_events
        index = PartitionIndex(partition.index)
        directory = log_directory(self._storage.data_dir, partition.topic_id, partition.name, index, events=events)
        if self._table.find(partition.topic_id, partition.index) is partition:
            faulty = Faulty(partition.name, partition.index, partition.raft_group, reason, directory, damaged=False)
            faulty.records = partition.high_watermark
            self._table.replace(partition.topic_id, faulty)
        for answer in partition.waiters.take_all():
            self._own(partition, answer)
        for step in self._steps:
            self._own(partition, partial(step, partition))
        partition.producers.clear()
        self._storage.forget(log)

    def _own(self, partition: Partition, step: Callable[[], None]) -> None:
        """A step that concerns nothing but the partition: it may meet what the failure has left."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the partition has failed already
            operator_log.at(partition.log.name).debug("while it was taken down: %s", words_of(error))


def is_of_the_shard(error: Exception) -> bool:
    """Whether an exception was raised by a structure that partitions share. Its first frame, the entry's, does not
    count: the write-ahead log calls verbs, too.
    """
    module, function = "", ""
    traceback = error.__traceback__ and error.__traceback__.tb_next
    while traceback is not None:
        frame = traceback.tb_frame
        name = frame.f_globals.get("__name__", "")
        if name.startswith("millstream."):
            module, function = name, frame.f_code.co_name
        traceback = traceback.tb_next
    return module.startswith(SHARED) and function not in PASSED_THROUGH


def words_of(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


UNKNOWN: Final = ErrorCode.REQUEST_TIMED_OUT
"""Answer to a request whose outcome a failure has left unknown."""
