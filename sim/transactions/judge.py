"""What must hold of transactions: D3 to D5, checked at each append, each marker and each read, and after the heal.

- D3: a read_committed reader sees all of a transaction or nothing; nothing of an aborted one, nothing of one that may
  still be aborted, and what it once saw stays.
- D4: after InitProducerId returned an epoch, no batch of an earlier one is appended.
- D4: no producer gets the last epoch, and no record has an epoch behind the last.
- D5: a marker is written only after its decision is in the coordinator's log, and every open transaction ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

import msgspec

from millstream.core.txn.image import EPOCH_MAX, EXHAUSTED
from millstream.core.txn.state import TransactionState
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.core.producer_state import ProducerState
    from millstream.core.txn.image import Image, TopicPartition


class Data(Protocol):
    """A partition, as the judge needs it."""

    place: TopicPartition
    producers: ProducerState

    def committed_values(self) -> list[int]: ...


class Attempt(msgspec.Struct):
    """A transaction as its client knows it."""

    name: str
    acknowledged: list[int] = []
    """Values of which a partition has said that it has them."""
    sent: set[int] = set()
    asks_commit: bool = False
    """Whether an EndTxn that commits was ever sent."""
    committed: bool | None = None
    """The outcome, if the coordinator confirmed it."""


class Judge:
    """Knows what clients and logs have seen."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.epochs: dict[tuple[str, int], int] = {}
        """(transactional id, producer id) → newest epoch that an InitProducerId was answered with."""
        self.decisions: dict[tuple[int, int], set[bool]] = {}
        """(producer id, epoch of the marker) → decisions in the coordinator's log: whether to commit."""
        self.views: dict[TopicPartition, list[int]] = {}

    def begun(self, name: str, producer_id: int, epoch: int) -> None:
        """An InitProducerId was answered."""
        self.given(name, epoch)
        key = (name, producer_id)
        self.epochs[key] = max(epoch, self.epochs.get(key, -1))

    def given(self, name: str, epoch: int) -> None:
        """A producer was given an epoch, by InitProducerId or EndTxn."""
        if epoch > EXHAUSTED:
            raise Violation(f"D4: {name} was given epoch {epoch}, behind which there is none to fence it")

    def decided(self, image: Image) -> None:
        """The coordinator's log has this record."""
        if image.producer_epoch > EPOCH_MAX:
            raise Violation(f"D4: a record with epoch {image.producer_epoch}")
        if image.state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
            commits = image.state is TransactionState.PREPARE_COMMIT
            self.decisions.setdefault((image.producer_id, image.producer_epoch), set()).add(commits)

    def appended(self, name: str, producer_id: int, epoch: int) -> None:
        """A partition has taken a batch."""
        newest = self.epochs.get((name, producer_id), -1)
        if epoch < newest:
            raise Violation(f"D4: a batch of {name} in epoch {epoch} was taken after InitProducerId gave {newest}")

    def marked(self, producer_id: int, epoch: int, commits: bool) -> None:
        """A partition has taken a marker."""
        if commits not in self.decisions.get((producer_id, epoch), ()):
            word = "commit" if commits else "abort"
            raise Violation(f"D5: a marker to {word} for producer {producer_id}, epoch {epoch} has no such decision")

    def read(self, data: Data) -> None:
        """A read_committed reader reads a partition from its start."""
        before, now = self.views.get(data.place, []), data.committed_values()
        if now[: len(before)] != before:
            raise Violation(f"D3: {data.place} showed {before[-5:]} to a reader, and then something else")
        self.views[data.place] = now

    def finish(self, partitions: Iterable[Data], images: dict[str, Image]) -> None:
        """Everything is healed, and time has passed."""
        for data in partitions:
            self.read(data)
            if data.producers.transactions.open:
                raise Violation(f"D5: transactions are open in {data.place} for ever")
        for name, image in images.items():
            if image.partitions:
                raise Violation(f"D5: {name} is {image.state.shown} for ever")
        seen = Counter(value for view in self.views.values() for value in view)
        twice = [value for value, times in seen.items() if times > 1]
        if twice:
            raise Violation(f"D3: {twice[:5]} were seen twice")
        for attempt in self.attempts:
            self._judge(attempt, seen)

    @staticmethod
    def _judge(attempt: Attempt, seen: Counter[int]) -> None:
        visible = [value for value in attempt.acknowledged if value in seen]
        others = [value for value in attempt.sent if value in seen]
        if others and (attempt.committed is False or not attempt.asks_commit):
            raise Violation(f"D3: {others[:5]} of an aborted transaction of {attempt.name} are read")
        if attempt.committed and len(visible) < len(attempt.acknowledged):
            raise Violation(f"D3: of a committed transaction of {attempt.name} {len(visible)} values are read")
        if visible and len(visible) < len(attempt.acknowledged):
            raise Violation(f"D3: a transaction of {attempt.name} is torn: {len(visible)} values are read")
