"""The transfer of a log from a leader to a replica: the receiving replica requests it part by part.

::

    receiver ──FilesWanted(description)──►        ◄──FilesPart: what the log is at the point ``end``──
             ──FilesWanted(offset)──►             ◄──FilesPart: batches from ``offset`` up to ``next_offset``──

The shells exchange these messages; the Raft core sees only the offer and the complete log. A lost part is requested
again. ``failed`` ends an attempt: the sender no longer leads, or its files were deleted.
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
    """The description of the log at ``end`` is wanted, in addition to its batches."""


class FilesPart(Struct, frozen=True, tag=11):
    """The answer. The batches, or the description, are in the body."""

    term: Term
    end: RaftPosition
    offset: Offset
    """Repeats the request's."""
    next_offset: Offset
    """Where the next part starts."""
    description: bool = False
    failed: bool = False
    """This attempt is over; there is no body."""
