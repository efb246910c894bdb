"""A log on its way from a leader to a replica that needs files: asked for piece by piece, by the replica that receives.

::

    receiver ──FilesWanted(description)──►        ◄──FilesPart: what the log is at the point ``end``──
             ──FilesWanted(offset)──►             ◄──FilesPart: batches from ``offset`` up to ``next_offset``──

These are messages between shells; the Raft core knows the offer before and the log after. A part that is lost is asked
for again. ``failed`` ends an attempt: the sender leads no more, or what was to be sent is gone.
"""

from __future__ import annotations

from msgspec import Struct

from millstream.model.quantities import Offset
from millstream.model.replication import RaftPosition, Term


class FilesWanted(Struct, frozen=True, tag=10):
    """The receiver asks for a part of the log that ends at ``end``."""

    term: Term
    end: RaftPosition
    offset: Offset
    """First offset that is wanted; 0 with ``description``."""
    description: bool = False
    """What the log is at ``end`` is wanted, beside its batches."""


class FilesPart(Struct, frozen=True, tag=11):
    """The answer. The batches, or the description, are in the body."""

    term: Term
    end: RaftPosition
    offset: Offset
    """Repeats the request's."""
    next_offset: Offset
    """Where the next part begins."""
    description: bool = False
    failed: bool = False
    """This attempt is over; there is no body."""
