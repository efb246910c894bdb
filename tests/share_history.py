"""What competing members of one share group got and said, and whether Kafka's promises hold for it (KIP-932).

All times are of one monotonic clock; an event has the time before its request and the time after its answer. The broker
did what was asked somewhere between the two, so a claim is made only where no order of the two allows what was seen.

**What is checked.**

- *again*: a record is not delivered after an acknowledgement of it that ends it was answered.
- *two holders*: in one leadership a record that is held, and neither acknowledged nor past its lock, is not delivered.
- *count*: a delivery count is between 1 and the limit, and grows with each delivery in one leadership.
- *skipped*: a record below the start of its share partition was deleted, or a member has asked for its end, or it was
  delivered as often as the limit allows. Deliveries whose answer was lost may have been among them.
"""

import threading
from collections import defaultdict
from dataclasses import dataclass, field

ENDS = frozenset({0, 1, 3})
"""Acknowledgements that end a record: gap, accept, reject."""

REFUSED = frozenset({42, 121, 122, 123})
"""Errors after which nothing was done."""


@dataclass(frozen=True)
class Delivered:
    """``member`` got the offsets. ``lead`` names the leadership, None if it changed."""

    member: str
    lead: tuple | None
    partition: int
    first: int
    last: int
    count: int
    began: float
    ended: float


@dataclass(frozen=True)
class Said:
    """An acknowledgement. ``error`` is 0, a code of Kafka's, or None: there was no answer."""

    member: str
    lead: tuple | None
    partition: int
    first: int
    last: int
    kind: int
    began: float
    ended: float
    error: int | None


@dataclass(frozen=True)
class Lost:
    """A fetch of the partitions without an answer: what it was given is not known."""

    partitions: frozenset


@dataclass(frozen=True)
class Left:
    """``member`` has ended its session on a broker at ``began`` or later."""

    member: str
    broker: tuple
    began: float


@dataclass
class History:
    """Events of all members, in any order."""

    lock_s: float
    limit: int
    events: list = field(default_factory=list)
    starts: dict = field(default_factory=dict)
    """By partition: the start at the end."""
    begins: dict = field(default_factory=dict)
    """By partition: where the group began, 0 for those that are not named."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, event):
        with self.lock:
            self.events.append(event)

    def check(self):
        """What is wrong, as texts; at most a few of each kind."""
        found = defaultdict(list)
        by_partition = defaultdict(list)
        for event in self.events:
            if isinstance(event, Delivered | Said):
                by_partition[event.partition].append(event)
        leaves = defaultdict(list)
        for event in self.events:
            if isinstance(event, Left):
                leaves[event.member, event.broker].append(event.began)
        for partition, events in by_partition.items():
            of_offset = defaultdict(list)
            for event in events:
                for offset in range(event.first, event.last + 1):
                    of_offset[offset].append(event)
            for offset, mine in of_offset.items():
                self._check_one(f"{partition}:{offset}", mine, leaves, found)
            self._check_start(partition, of_offset, found)
        return [text for kind in sorted(found) for text in found[kind][:5]]

    def _check_one(self, name, events, leaves, found):
        deliveries = sorted((one for one in events if isinstance(one, Delivered)), key=lambda one: one.ended)
        said = [one for one in events if isinstance(one, Said)]
        done = min((one.ended for one in said if one.error == 0 and one.kind in ENDS), default=None)
        for one in deliveries:
            if done is not None and one.began > done:
                found["again"].append(f"again: {name} came to {one.member} after its end was acknowledged: {one}")
            if not 1 <= one.count <= self.limit:
                found["count"].append(f"count: {name} has the count {one.count}, the limit is {self.limit}: {one}")
        for one in deliveries:
            until = self._held_until(one, said, leaves)
            for other in deliveries:
                if other.lead != one.lead or one.lead is None or other.began <= one.ended:
                    continue
                if other.ended < until:
                    found["two holders"].append(f"two holders: {name} was held: {one}, and came: {other}")
                if other.count <= one.count:
                    found["count"].append(f"count: of {name} does not grow: {one}, {other}")

    def _held_until(self, one, said, leaves):
        """When a delivery may have been given back at the earliest."""
        ends = [one.began + self.lock_s]
        ends += [each.began for each in said if each.member == one.member and each.ended >= one.began]
        ends += [began for began in leaves[one.member, (one.lead or (None,))[0]] if began >= one.began]
        return min(ends)

    def _check_start(self, partition, of_offset, found):
        lost = sum(isinstance(event, Lost) and partition in event.partitions for event in self.events)
        for offset in range(self.begins.get(partition, 0), self.starts.get(partition, 0)):
            events = of_offset.get(offset, ())
            if any(isinstance(one, Said) and one.kind in ENDS and one.error not in REFUSED for one in events):
                continue
            most = max((one.count for one in events if isinstance(one, Delivered)), default=0)
            if most + lost < self.limit:
                text = f"skipped: {partition}:{offset} was delivered {most} times, and nobody ended it: {list(events)}"
                found["skipped"].append(text)
