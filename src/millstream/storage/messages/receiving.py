"""Commands and replies about a log that another replica sends; the tags are in one row with those of ``commands``."""

from __future__ import annotations

import msgspec

from millstream.format.events.chunk import ChunkLimits
from millstream.helper.link import CallId
from millstream.model.quantities import Offset
from millstream.model.replication import ReplicaId, Term


class Stage(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Write batches of a log that another replica sends into ``directory``. → ``Staged``."""

    id: CallId
    directory: str
    first: bool
    """Start with an empty directory."""

    start: Offset
    """First offset of the log's files."""

    generation: int
    segment_bytes: int
    index_interval: int
    spans: list[int]
    now_ms: int
    chunk_limits: ChunkLimits | None = None
    """When a segment of an event topic is full; None for other logs."""


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Look for what an earlier start received of a log, and continue it. → ``Resumed``."""

    stage: Stage
    """As for the first batches: its generation is the least that may be gone on with."""

    directories: list[str]
    """Where it may be. The one with the most of it is chosen."""

    @property
    def id(self) -> CallId:
        return self.stage.id


class StageEnd(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """All of it was sent: complete the files, durably. → ``Staged``."""

    stage: Stage
    """Without spans."""

    end_offset: Offset
    state: bytes
    """Content of the ``epochs`` file."""

    producers: tuple[int, bytes] | None
    place: str = ""
    """Where the files are to be then, if that is not where they are."""

    @property
    def id(self) -> CallId:
        return self.stage.id


class Adopt(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Put a staged log in the place of ``directory``, durably; the replica's vote goes over. → ``Done``."""

    id: CallId
    directory: str
    staged: str
    term: Term
    voted_for: ReplicaId


class Staged(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """How a ``Stage`` or ``StageEnd`` went; with an errno or a fault the attempt is over."""

    id: CallId
    errno: int
    end_offset: int
    """End (exclusive) of what is there."""

    fault: str
    """Not empty: what was sent is damaged or does not follow."""


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The received files that an attempt can continue, in ``directory``; empty without any."""

    id: CallId
    directory: str
    start: Offset = Offset(0)
    """First offset of the log's files."""

    end_offset: Offset = Offset(0)
    """End (exclusive) of what is there."""

    last_epoch: Term = Term(0)
    """Leader epoch of the last batch."""

    created_ms: int = 0
    """When the first of it came."""


ToReceive = Resume | Stage | StageEnd | Adopt
"""To the worker."""

Received = Staged | Resumed
"""From it."""
