"""What a leader knows of one peer, and how fast it may send to it.

::

    PROBE ──── a match is found ────► REPLICATE
      ▲ ▲                                │ │
      │ └─ entries lost, rejected ───────┘ │
      │                                    ▼
      └──── files adopted, or failed ── INSTALL   the entries it needs are no longer in the log

In PROBE one append at a time is in flight, and the next is sent after an answer. In REPLICATE appends are sent ahead of
their answers, bounded by a window in messages and bytes: what a stalled peer costs is one window. In INSTALL nothing is
sent but the offer.

Source: etcd raft, `tracker.Progress`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from millstream.model.replication import RaftPosition, TimeUs

if TYPE_CHECKING:
    from millstream.core.raft.options import RaftOptions

ZERO = RaftPosition(0)


class Flow(Enum):
    """How a leader sends to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    INSTALL = "install"


class Progress:
    """Progress of one peer; a leader makes one per member when its term starts.

    Invariants: ``durable <= received``; ``next >= received`` while in REPLICATE; every position lies between two
    batches of the leader's log.
    """

    __slots__ = (
        "answered_append_us",
        "beat_next",
        "beat_round",
        "contact_us",
        "durable",
        "flow",
        "in_flight",
        "in_flight_bytes",
        "next",
        "offered",
        "ordered",
        "paused",
        "received",
        "round",
        "serial",
        "told_committed",
        "told_end",
        "told_round",
    )

    def __init__(self, next_position: RaftPosition, now: TimeUs) -> None:
        self.received = ZERO
        """End of what the peer has in its memory; falls back if the peer has lost it in a crash."""
        self.durable = ZERO
        """End of what the peer has on its disk. Rises only, unless the peer has lost a part of it."""
        self.next = next_position
        """Where the next append starts."""
        self.flow = Flow.PROBE
        self.paused = False
        """PROBE: an append is in flight, and nothing is sent before its answer or that of a heartbeat."""
        self.in_flight: deque[tuple[RaftPosition, int]] = deque()
        """End and bytes of each append that the peer has not reported as synced, oldest first."""
        self.in_flight_bytes = 0
        self.ordered = False
        """The shell has an order to send, and has not said what came of it."""
        self.serial = 0
        """Serial of the last order. It rises with each change of ``flow``, too, which voids the order before it."""
        self.contact_us = now
        """When the peer last answered anything in this term; the start of the term until it does."""
        self.answered_append_us = TimeUs(0)
        """When the peer last answered an append, which makes a heartbeat needless."""
        self.round = 0
        """Newest round that the peer has answered."""
        self.beat_round = 0
        """Round of a heartbeat that was sent while entries were in flight, and is not answered yet: the oldest."""
        self.beat_next = ZERO
        """``next`` when it was sent: an answer to it that has less means that entries were lost."""
        self.told_end: RaftPosition | None = None
        """End of the whole log, when a heartbeat said that all of it is committed; None if none did in this flow."""
        self.told_committed = ZERO
        """What the last append or heartbeat of this flow said is committed, as far as the peer has it."""
        self.told_round = 0
        """Round of that heartbeat: who has answered it knows."""
        self.offered: RaftPosition | None = None
        """INSTALL: the end of the files that were offered; None until the shell has chosen."""

    def may_send(self, end: RaftPosition, options: RaftOptions) -> bool:
        """Whether an append is due, for a log that ends at ``end``."""
        if self.ordered:
            return False
        if self.flow is Flow.REPLICATE:
            if self.next >= end:
                return False
            if not options.pipelining:
                return not self.in_flight
            return (
                len(self.in_flight) < options.max_in_flight_appends
                and self.in_flight_bytes < options.max_in_flight_bytes
            )
        return self.flow is Flow.PROBE and not self.paused

    def sent(self, end: RaftPosition, size_bytes: int) -> None:
        """An append up to ``end`` has been given to the network."""
        if self.flow is Flow.PROBE:
            self.paused = True
        elif end > self.next:
            self.next = end
            self.in_flight.append((end, size_bytes))
            self.in_flight_bytes += size_bytes

    def acknowledge(self, received: RaftPosition, durable: RaftPosition) -> bool:
        """Take over what an answer reports; true if the durable end has moved. Old answers change nothing."""
        if received > self.received:
            self.received = received
        moved = durable > self.durable
        if moved:
            self.durable = durable
            self.received = max(self.received, durable)
        while self.in_flight and self.in_flight[0][0] <= self.durable:
            self.in_flight_bytes -= self.in_flight.popleft()[1]
        if self.flow is Flow.REPLICATE and self.next < self.received:
            self.next = self.received
        return moved

    def lost(self, end: RaftPosition) -> None:
        """The peer has lost what it had reported after ``end``."""
        self.durable = min(self.durable, end)
        self.received = min(self.received, end)

    def replicate(self) -> None:
        """The peer matches up to ``received``: send ahead from there."""
        self._enter(Flow.REPLICATE)
        self.next = self.received

    def probe(self, next_position: RaftPosition) -> None:
        """Find out whether the peer matches at ``next_position``; what is in flight is taken for lost."""
        self._enter(Flow.PROBE)
        self.next = next_position
        if self.received > next_position:
            self.received = max(next_position, self.durable)

    def install(self) -> None:
        """The peer needs files."""
        self._enter(Flow.INSTALL)

    def _enter(self, flow: Flow) -> None:
        self.flow = flow
        self.paused = False
        self.ordered = False
        self.serial += 1
        self.offered = None
        self.told_end = None
        self.told_committed = ZERO
        self.in_flight.clear()
        self.in_flight_bytes = 0
