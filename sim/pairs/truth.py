"""What clients of a pair know of one partition: what was acknowledged, what may be there, and what may be gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable


class Refused(Exception):
    """The broker refuses what an operation asks for; the text is its sentence, or the name of its error."""


class Written(NamedTuple):
    """A record of a client. ``timestamp`` is None where the broker sets it."""

    key: bytes | None
    value: bytes
    timestamp: int | None
    once: bool
    """Its producer was promised that it is there once."""


class Truth:
    """One partition of one topic. Offsets are those of records; an end is exclusive."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Written] = {}
        """By offset."""
        self.unknown: dict[bytes, Written] = {}
        """By value: sent, and without an answer that promises anything."""
        self.repeated: set[bytes] = set()
        """Values that a plain producer has sent twice."""
        self.aborted: set[bytes] = set()
        """Values of transactions of which a client knows that they were aborted."""
        self.open: set[bytes] = set()
        """Values of transactions whose end no client knows."""
        self.start = 0
        """The highest log start that was answered."""
        self.asked_start = 0
        """The highest log start that was asked for."""
        self.expires = False
        """Retention was on: records at the start may be gone."""
        self.compacts = False
        """Compaction was on: records whose key has a later value may be gone."""
        self.latest = 0
        """The highest LATEST that was answered."""
        self.keeps_keys = True
        """Records are returned with the keys that they were written with."""

    def acknowledge(self, offset: int, record: Written) -> None:
        """A client was answered."""
        before = self.acknowledged.setdefault(offset, record)
        if before != record:
            raise Violation(f"offset {offset} was given to {before.value[:30]!r} and to {record.value[:30]!r}")

    def may_be_gone(self, offset: int) -> bool:
        """Whether compaction may have removed an acknowledged record."""
        if not self.compacts:
            return False
        record = self.acknowledged[offset]
        if record.key is None or not record.value or record.value in self.aborted | self.open:
            return True
        return any(
            later.key == record.key and other > offset and later.value not in self.aborted
            for other, later in self.acknowledged.items()
        ) or any(later.key == record.key for later in self.unknown.values())

    def known(self, value: bytes) -> bool:
        """Whether a client wrote it."""
        return value in self.unknown or any(one.value == value for one in self.acknowledged.values())

    def values(self) -> Iterable[bytes]:
        """Of all acknowledged records."""
        return (one.value for one in self.acknowledged.values())
