"""What a shard says to its worker and its cleaner and they to it: one small value per message, payload only as places
in the arena.

``Command`` goes to the worker, ``Reply`` comes back; replies carry the id of their command, or the group of the log
they are about. An ``errno`` of 0 is success. Everything about one segment file (write, truncate, delete) is done in the
order it was sent.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from millstream.format.index import SegmentSummary
from millstream.helper.link import CallId, HelperLink
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import Term
from millstream.storage.messages.receiving import Adopt, Received, Resume, Stage, StageEnd, ToReceive
from millstream.wire.inspection import Rules


class FoundRecord(NamedTuple):
    """A record that a search by time found."""

    offset: Offset
    timestamp: TimestampMs
    leader_epoch: Term


class Write(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Put bytes at ``position`` of a segment file, which is made if it is missing. → ``Written``."""

    id: CallId
    path: str
    position: int
    spans: list[int]
    """Start, end, start, end, … in the arena."""

    entries: list[int]
    """New index entries: offset, position, largest timestamp before, …"""

    topic: str = ""
    """Content of the ``topic`` file beside a directory that is made new."""


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Make what was written so far durable, then note it in the indexes. The last of a row (``last``) →
    ``Checkpointed``.
    """

    id: CallId
    segments: list[tuple[str, SegmentSummary]]
    """Segments and how far they go; an index block is appended for each."""

    files: list[tuple[str, bytes]]
    """Small files to be replaced."""

    remove: list[str]
    """Files that are superfluous afterwards."""

    state: tuple[str, bytes] | None = None
    """Directory of the write-ahead log and the content of its ``state`` files, replaced after everything else."""

    last: bool = True
    throttled: bool = False
    """In a row's last: no caller waits for it yet, see ``Hurry``."""

    aside: list[tuple[int, str]] = []
    """In a row's last: groups of logs that failed, with their directories. What the write-ahead log has of them below
    the first frame that ``state`` needs is copied before that is replaced.
    """


class Read(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Read whole batches into the arena. → ``ReadDone``."""

    id: CallId
    path: str
    base_offset: Offset
    limit: int
    """Bytes of the file that are there."""

    offset: Offset
    end_offset: Offset
    max_bytes: int
    minimum_one: bool
    spans: list[int]
    epochs: list[tuple[Term, Offset]] = []
    """(leader epoch, its first offset) of the batches that may be read, as far as it is known."""


class FindRuns(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Tell the runs of a segment around an offset. → ``RunsFound``."""

    id: CallId
    path: str
    base_offset: Offset
    offset: Offset


class Find(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Find the first record with a timestamp ≥ ``timestamp`` in [``offset``, ``end_offset``). → ``Found``."""

    id: CallId
    path: str
    base_offset: Offset
    limit: int
    timestamp: TimestampMs
    offset: Offset
    end_offset: Offset
    largest: bool = False
    """Instead: the first record with the largest timestamp of all batches in that stretch."""

    partial: bool = False
    """The limit may lie within a batch that is being written: what is before that batch is read."""


class Cut(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Cut a segment file to ``size_bytes`` and forget its index. → ``Done``."""

    id: CallId
    path: str
    base_offset: Offset
    size_bytes: int


class Remove(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Remove segments with all that belongs to them. → ``Done``."""

    id: CallId
    paths: list[str]


class RemoveDirectory(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Remove a partition's directory, and the topic's when it was the last. → ``Removed``."""

    id: CallId
    directory: str


class ForgetFiles(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Keep nothing in memory of the files of a log: the shard is about to change them itself. → ``Done``."""

    id: CallId
    directory: str


class PrepareFile(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Make a zero-filled file for the write-ahead log, with pauses until ``HurryFile``. → ``Prepared``."""

    number: int
    path: str
    size_bytes: int


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """End. → nothing."""


class Source(msgspec.Struct, frozen=True, array_like=True):
    """A sealed segment that compaction reads."""

    path: str
    end_offset: Offset
    size_bytes: int


class GatherKeys(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Start a pass: gather the keys from ``first_offset`` on, in a buffer of ``buffer_bytes``. → ``KeysGathered``.

    The last two fields bound the whole pass: bytes read and written a second, and the share of a core.
    """

    id: CallId
    sources: list[Source]
    first_offset: Offset
    buffer_bytes: int
    load_percent: int
    bytes_per_second: float
    cpu_percent: int
    aborted: list[tuple[int, int, int]] = []
    """Aborted transactions: (producer id, first offset, offset of the marker). Their keys are not gathered."""


class Rewrite(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Write what survives of some segments into one, aside of ``path``, and sync it. → ``Rewritten``."""

    id: CallId
    sources: list[Source]
    path: str
    base_offset: Offset
    generation: int
    created_ms: int
    index_interval: int
    now_ms: int
    delete_retention_ms: int
    producers: dict[int, int]
    """The last offset of each producer that is still known."""
    aborted: list[tuple[int, int, int]] = []
    """Aborted transactions, as in ``GatherKeys``: none of their records survives, and their markers do."""
    marked: dict[int, int] = {}
    """Epoch of each producer of which only a marker is known: it keeps its markers of that epoch."""
    epochs: list[tuple[Term, Offset]] = []
    """As in ``Read``: what is copied has them, as its new index vouches for every byte."""


class PutRewritten(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Give what was rewritten its name, durably. → ``RewrittenPut``."""

    id: CallId
    path: str


class EndPass(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Forget the keys, and remove what was rewritten aside of ``path`` if that is not empty. → nothing."""

    path: str


class Interrupt(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Cancel the running command, which is answered with ECANCELED. → nothing."""


class Hurry(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Finish the checkpoint of this id without pauses. → nothing."""

    id: CallId


class HurryFile(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Finish the file of the write-ahead log of this number without pauses. → nothing."""

    number: int


class Inspect(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Look at the records of a producer's batch, and rewrite it if the topic requires that. → ``Inspected``."""

    id: CallId
    spans: list[int]
    """Where the batch is in the arena: start, end, …; the new one is put there if it fits."""

    rules: Rules


class Collect(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Put the batch that an ``Inspect`` kept into the arena; without spans it is forgotten. → ``Done``."""

    id: CallId
    inspect: int
    spans: list[int]


class Feed(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Read metadata and descriptors of events of one chunk into the arena. → ``EventsFed``."""

    id: CallId
    path: str
    offset: Offset
    end_offset: Offset
    events_max: int
    max_bytes: int
    open_files_max: int
    """``fd_cache_capacity`` of the topic."""

    spans: list[int]


class FetchData(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Read selected data of events of one chunk into the arena. → ``DataFetched``."""

    id: CallId
    path: str
    wanted: list[tuple[int, bytes]]
    """Event id, and the descriptor that selects of its data."""

    max_bytes: int
    open_files_max: int
    spans: list[int]


Command = (
    Write
    | Checkpoint
    | Read
    | FindRuns
    | Find
    | Cut
    | Remove
    | RemoveDirectory
    | ForgetFiles
    | PrepareFile
    | Stop
    | GatherKeys
    | Rewrite
    | PutRewritten
    | EndPass
    | Interrupt
    | Inspect
    | Collect
    | Hurry
    | HurryFile
    | Feed
    | FetchData
    | ToReceive
)


class Written(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A ``Write`` is in the page cache, or is not."""

    id: CallId
    errno: int
    bytes: int


class Checkpointed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Everything is durable. With an errno it is not: ``synced`` tells a failed sync (which is final) from a
    full disk.
    """

    id: CallId
    errno: int
    synced: bool
    what: str
    broken: list[tuple[str, str]] = []
    """Directories of logs of which a file met what no command meets, and the exception with its traceback. The state of
    the write-ahead log is as before then.
    """


class ReadDone(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """How a ``Read`` went. ``need`` > 0: the first batch has that many bytes and did not fit; read again with room."""

    id: CallId
    errno: int
    bytes: int
    need: int
    fault: str
    """Not empty: the bytes on disk are not what they should be."""

    end_offset: Offset
    """End (exclusive) of the batches that were read."""


class RunsFound(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """The runs that a ``FindRuns`` asked for, as ``SegmentIndex.runs`` gives them; empty if they are not known."""

    id: CallId
    runs: bytes


class Found(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The record that a ``Find`` asked for: offset (-1: none), timestamp, leader epoch."""

    id: CallId
    errno: int
    offset: Offset
    timestamp: TimestampMs
    leader_epoch: int
    fault: str


class Broke(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """A command about one log has raised what no command raises."""

    id: CallId
    what: str
    """The exception, and its traceback."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A command with an id is carried out."""

    id: CallId


class Prepared(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A file for the write-ahead log is there."""

    number: int
    errno: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The worker cannot continue: the shard has to stop with this reason."""

    reason: str


class KeysGathered(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The keys up to ``end_offset`` (exclusive) are known: fewer than asked for, if there was no room for more."""

    id: CallId
    errno: int
    end_offset: Offset
    keys: int
    bytes: int
    fault: str
    """Not empty: a batch that had to be read is damaged, or cannot be read."""


class Rewritten(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """What became of some segments."""

    id: CallId
    errno: int
    summary: SegmentSummary | None
    read_bytes: int
    records: int
    """That survived."""

    gone: int
    """Records that did not."""

    fault: str
    emptied: list[int] = []
    """Markers of aborted transactions, by offset, that are the only thing left of the transaction."""


class RewrittenPut(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The file has its name, durably, or why not; ``named``: it has it, perhaps not durably."""

    id: CallId
    errno: int
    named: bool
    fault: str = ""
    """What no command raises was raised: the name of the file is unknown."""


class Inspected(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """What became of a batch: refused with ``error``, or ``bytes`` of it are in the spans now. With ``need`` > 0 it did
    not fit there: it has that many bytes and is kept for a ``Collect``.
    """

    id: CallId
    error: int
    bytes: int
    need: int
    message: str
    records: list[tuple[int, str]]
    """Why it was refused, and for which records."""


class Removed(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A directory was removed, or the error that prevented it."""

    id: CallId
    errno: int


class EventsFed(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """``count`` events are in the spans: their metadata (``meta_bytes``), 4 bytes each for the sizes of metadata, 4
    bytes each for the sizes of descriptors, and the descriptors. With ``need`` > 0 the first did not fit and takes that
    many bytes.
    """

    id: CallId
    errno: int
    fault: str
    count: int = 0
    meta_bytes: int = 0
    bytes: int = 0
    need: int = 0
    times: list[tuple[int, int]] = []
    """So many events in a row have this time (ms)."""


class DataFetched(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The data of the first events are in the spans, back to back. With ``need`` > 0 the first did not fit and takes
    that many bytes.
    """

    id: CallId
    errno: int
    fault: str
    results: list[tuple[int, int]] = []
    """Error code and size of each."""

    bytes: int = 0
    need: int = 0


Reply = (
    Written
    | Checkpointed
    | ReadDone
    | RunsFound
    | Found
    | Broke
    | Done
    | Prepared
    | Failed
    | KeysGathered
    | Rewritten
    | RewrittenPut
    | Inspected
    | Removed
    | EventsFed
    | DataFetched
    | Received
)

WorkerLink: TypeAlias = HelperLink[Command, Exception]
"""The calls of a shard to its worker and its cleaner."""

SEGMENTS_LANE = 0
SYNCS_LANE = 1
CHORES_LANE = 2
BATCHES_LANE = 3
READS_LANE = 4
LANES = 7
"""Lanes of the worker; those from ``READS_LANE`` on are alike and take turns."""

CLEANER_LANE = LANES
"""The cleaner is a process of its own: it is bound by the CPU, and would delay every thread that shares an interpreter
lock with it.
"""

LANE_OF: dict[type[Command], int] = {
    Write: SEGMENTS_LANE,
    Cut: SEGMENTS_LANE,
    Remove: SEGMENTS_LANE,
    RemoveDirectory: SEGMENTS_LANE,
    ForgetFiles: SEGMENTS_LANE,
    Adopt: SEGMENTS_LANE,
    Checkpoint: SYNCS_LANE,
    PrepareFile: CHORES_LANE,
    Inspect: BATCHES_LANE,
    Collect: BATCHES_LANE,
    Hurry: BATCHES_LANE,  # waits for no disk
    HurryFile: BATCHES_LANE,
    Read: READS_LANE,
    FindRuns: READS_LANE,
    Find: READS_LANE,
    Feed: READS_LANE,
    FetchData: READS_LANE,
    Resume: READS_LANE,
    Stage: READS_LANE,  # one at a time for each log, so their order does not matter
    StageEnd: READS_LANE,
    GatherKeys: CLEANER_LANE,
    Rewrite: CLEANER_LANE,
    PutRewritten: CLEANER_LANE,
    EndPass: CLEANER_LANE,
    Interrupt: CLEANER_LANE,
}
"""The lane that executes each command, the first of several alike."""

LANES_OF = {kind: range(lane, LANES if lane == READS_LANE else lane + 1) for kind, lane in LANE_OF.items()}
"""The lanes that execute each command."""

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
