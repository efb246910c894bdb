"""The part in take-overs of a broker of a cluster whose acknowledgements wait for the object store.

::

    start ──► registered, all commands before that applied ──REGISTERED──► every shard writes entries
              ──► what each shard's files have is in the store ──IN_STORE──► NoteLogInStore: others may take it over
    alive ──► a commit gives its partitions to others ──TAKEN──► no shard writes or removes an entry; it starts again
          ──► its log is sealed ───────────────────────────────► it starts again

That is a broker with ``shared.wal=object``. After that start it serves what was not taken. Until the controller knows
that the store has what this broker acknowledged, nothing is taken over (`core.controller.restoring`). It is noted
once, and again when a start with ``shared.wal=disk`` lies between.

**A partition that is not opened**, because it is damaged or the disk is full: its files may alone have records. The
broker says nothing while there is one. **Crash.** The next start does the same again. **The controller refuses**, or is
not there: it is asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.cluster.messages import CONTROLLER_SHARD, IN_STORE, REGISTERED, TAKEN
from millstream.cluster.plans import ignore
from millstream.core.controller.commands import RESTORING_PARTITIONS
from millstream.core.controller.requests import NoteLogInStore
from millstream.model.cluster import BrokerEpoch, NodeId
from millstream.partition.table import Faulty, Restoring, Waiting
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.metadata import MetadataCache
    from millstream.cluster.quorum_controller import QuorumController
    from millstream.core.controller.registry import BrokerState
    from millstream.partition.table import Entry, PartitionTable
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply
    from millstream.tiers.shared_wal import SharedWal

LOOK_US: Final = 1_000_000


class LogInStore:
    """One shard's log in the store, and on the controller's shard also what the broker says of it.

    Lifecycle: made before the reactor runs; `registered` once this broker is.
    """

    def __init__(
        self,
        shard: Shard,
        table: PartitionTable,
        wal: SharedWal,
        metadata: MetadataCache,
        controller: QuorumController | None,
        begin_anew: Callable[[str], None],
    ) -> None:
        """``controller`` is there on its shard. ``begin_anew`` stops this broker and starts it again, with a reason."""
        self._metadata = metadata
        self._epoch = BrokerEpoch(0)
        """Epoch of this broker's registration."""
        self._shard = shard
        self._table = table
        self._wal = wal
        self._controller = controller
        self._begin_anew = begin_anew
        self._missing = set(range(shard.count))
        """Shards that have not said that the store has what their files have."""
        if controller is not None:
            controller.on_taken = self._taken
            shard.mailbox.serve(IN_STORE, self._serve_in_store)
        else:
            shard.mailbox.serve(REGISTERED, self._serve_registered)
            shard.mailbox.serve(TAKEN, self._serve_taken)

    def registered(self) -> None:
        """On the controller's shard: every shard has applied this broker's registration, and what came before it."""
        own = self._own_state()
        self._epoch = BrokerEpoch(0) if own is None else own.epoch
        self._tell_others(REGISTERED)
        self._begin()

    def _tell_others(self, message: int) -> None:
        for other in range(self._shard.count):
            if other != self._shard.id:
                self._shard.mailbox.tell(other, message, b"")

    def _begin(self) -> None:
        self._wal.begin()
        self._look()

    def _look(self) -> None:
        """Say when the store has what the files of this shard have."""
        if not self._wal.is_complete or any(map(_is_unknown, self._entries())):
            self._shard.reactor.call_later(LOOK_US, self._look)
        elif self._controller is None:
            self._shard.mailbox.tell(CONTROLLER_SHARD, IN_STORE, b"")
        else:
            self._complete(self._shard.id)

    def _entries(self) -> list[Entry]:
        return [entry for entries in self._table.by_id.values() for entry in entries]

    # On the controller's shard

    def _complete(self, shard: int) -> None:
        self._missing.discard(shard)
        if not self._missing:
            self._note()

    def _note(self) -> None:
        """Tell the controller, if it does not know, for as long as it refuses."""
        controller = self._controller
        assert controller is not None
        own = self._own_state()
        if own is not None and not own.profile.log_in_store:
            if self._metadata.state.feature_level >= RESTORING_PARTITIONS:
                controller.submit(NoteLogInStore(NodeId(self._metadata.node_id), self._epoch), ignore)
            self._shard.reactor.call_later(LOOK_US, self._note)

    def _own_state(self) -> BrokerState | None:
        """This broker as the cluster knows it; None once it has left."""
        return self._metadata.state.registry.brokers.get(NodeId(self._metadata.node_id))

    def _taken(self) -> None:
        """A commit has given partitions of this broker to others: they have sealed its log, and read it."""
        self._tell_others(TAKEN)
        self._wal.stop()
        operator_log.warning("shared partitions of this broker, which counted as dead, were taken over")
        self._begin_anew("others have taken over shared partitions of this broker; it starts again")

    # What shards say

    def _serve_registered(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload, reply
        self._begin()

    def _serve_taken(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload, reply
        self._wal.stop()

    def _serve_in_store(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = payload, reply
        self._complete(sender)


def _is_unknown(entry: Entry) -> bool:
    """Whether the files of a partition are not opened."""
    return isinstance(entry, Faulty) or (isinstance(entry, Waiting) and not isinstance(entry, Restoring))
