"""What clients requested and what was acknowledged: the memory of a client that never forgets.

A model knows every batch that was ever given to a log and not cut off again, how far the log said that it is
committed, where it was asked to start, which votes were asked for, which offsets groups committed. Recovery is judged
against it (`judge`): what was promised must be there, and nothing may be there that was not given. After a crash the
model becomes what was found, because from then on that is what readers see.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.format.epochs import StoredControl, StoredVote
from millstream.model.quantities import Offset

FOREVER_MS = 2**62


class Producer(NamedTuple):
    """Who wrote a batch, and which of his."""

    id: int
    epoch: int
    sequence: int


NOBODY = Producer(-1, -1, -1)


class Batch(NamedTuple):
    """One batch as it must be found."""

    base: int
    next: int
    data: bytes
    producer: Producer
    timestamp: int
    records: tuple[tuple[bytes, bytes | None], ...]
    """Key and value of each; of a compacted topic only."""


class TopicModel:
    """One topic, of one partition."""

    def __init__(self, group: int, name: str, config: dict[str, Any]) -> None:
        self.group = group
        self.name = name
        self.topic_id = bytes(12) + group.to_bytes(4, "big")
        self.config = config
        self.compacted = "compact" in config.get("cleanup_policy", ())
        self.has_events = bool(config.get("has_events"))
        self.internal = name.startswith("__")
        """What is in it is the coordinator's affair, and judged by what it makes of it."""

        self.batches: list[Batch] = []
        self.promised_end = 0
        self.start = 0
        """Where the log starts for certain, because a client has seen it."""

        self.asked_start = 0
        self.votes = [StoredVote()]
        """The one that was promised, then those that were asked for."""

        self.controls: list[StoredControl] = []
        """Control entries that were appended and not cut off."""

        self.promised_controls = 0
        """How many of them were durable."""

    def __repr__(self) -> str:
        return f"{self.name}/0"

    def batch_at(self, base: int) -> Batch | None:
        """The batch that starts at an offset."""
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].base < base:
                low = middle + 1
            else:
                high = middle
        found = self.batches[low] if low < len(self.batches) else None
        return found if found is not None and found.base == base else None

    def take(self, batch: Batch) -> None:
        """A batch was appended."""
        self.batches.append(batch)

    def asked(self, vote: StoredVote) -> None:
        """The vote is to be kept."""
        self.votes.append(vote)

    def kept(self, vote: StoredVote) -> None:
        """The vote was acknowledged as kept."""
        if vote in self.votes:
            self.votes = self.votes[self.votes.index(vote) :]


def replayed(batches: list[Batch]) -> ProducerState:
    """The producers of a log as a replay of all its batches gives them."""
    state = ProducerState(FOREVER_MS, ProducerBudget(1 << 20))
    for one in batches:
        if one.producer.id >= 0:
            number, epoch, sequence = one.producer
            state.record(number, epoch, sequence, one.next - one.base, Offset(one.base), one.timestamp, 0)
    return state


Place = tuple[str, str]
"""Group and topic."""


class OffsetsModel:
    """What groups committed. Each commit of a partition is another number, which identifies it."""

    def __init__(self) -> None:
        self.asked: dict[Place, list[int]] = {}
        """Of each place the commit that was acknowledged last (-1: none), then those that were asked for since."""

    def ask(self, place: Place, offset: int) -> None:
        """A commit is on its way; -1 forgets."""
        self.asked.setdefault(place, [-1]).append(offset)

    def acked(self, place: Place, offset: int) -> None:
        """It was acknowledged."""
        asked = self.asked[place]
        if offset in asked:
            self.asked[place] = asked[asked.index(offset) :]

    def found(self, place: Place, offset: int) -> None:
        """After a start: this is it from now on."""
        self.asked[place] = [offset]
