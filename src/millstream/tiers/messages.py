"""What the reactor and the archive process of a shard say to each other: small messages; bulk data are in the arena.

A command with an ``id`` is answered once, by the reply that its docstring names or by a `Failed`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from millstream.format.archive import AbortedSpan
from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
from millstream.helper.link import CallId
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ManifestVersion, Offset, TimestampMs
from millstream.model.replication import ReplicaId, Term
from millstream.model.shared import ObjectId, SharedPartition


class Upload(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Upload the batches of a local segment from offset ``from_offset`` on. → `Uploaded`."""

    id: CallId
    owner: ArchiveId
    path: str
    base_offset: Offset
    """Of the local segment."""

    from_offset: Offset
    end_offset: Offset
    size_bytes: int
    """Bytes of the local segment."""

    term: Term
    aborted: list[AbortedSpan]
    """The aborted transactions with a record in the segment."""

    appended_ms: TimestampMs
    """Wall clock when its last batch was appended, at the latest."""


class Put(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Write an object, replacing any other. → `Done`."""

    id: CallId
    key: str
    data: bytes


class Examine(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """Read a small object, and which version it has. → `Examined`."""

    id: CallId
    key: str


class Replace(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """Write an object if it still has a version; if it does not exist, with an empty one. → `Written`."""

    id: CallId
    key: str
    data: bytes
    expected: str


class Remove(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Remove segments, parts, and the segments in those parts. → `Done`."""

    id: CallId
    owner: ArchiveId
    segments: tuple[ArchivedSegment, ...]
    parts: tuple[ManifestPart, ...]
    part_objects: tuple[ManifestPart, ...] = ()
    """Of these the part object alone: their segments are needed, or named otherwise."""


class RemoveKeys(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Remove objects; of a folder, which ends with a slash, every object below it. → `Done`."""

    id: CallId
    keys: tuple[str, ...]
    owner: ArchiveId | None = None
    """The partition, if all of it is removed."""


class RemoveBelow(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Remove the segments and parts of a partition, whoever wrote them, that end at or below an offset. → `Done`."""

    id: CallId
    owner: ArchiveId
    offset: Offset


class SharedPart(msgspec.Struct, frozen=True, array_like=True):
    """Whole batches of one partition, for a shared object."""

    partition: SharedPartition
    from_offset: Offset
    """The first batch has this offset, and may start before it."""

    end_offset: Offset
    spans: list[int]
    """Parts of the arena: start, end, …"""

    aborted: list[AbortedSpan]
    """The aborted transactions with a record among the batches."""


class Share(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Write these batches as one shared object, and read it back. → `Shared`."""

    id: CallId
    object_id: ObjectId
    parts: list[SharedPart]


class SharedStart(msgspec.Struct, frozen=True, array_like=True):
    """From where on a shared partition needs shared objects."""

    topic_id: bytes
    partition_index: int
    start_offset: Offset
    """Start of its log."""

    joined_to: Offset
    """No offset below it is in a small range of a shared object. At least ``start_offset``."""


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Remove shared objects in which no offset is left, from those with a key after ``after``. → `Swept`."""

    id: CallId
    starts: list[SharedStart]
    """Of all shared partitions."""

    topics: list[bytes]
    """Ids of all topics that there are."""

    after: str


class Join(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Write these segments, or the first small ranges of the part, as one object of the partition's own. → `Joined`."""

    id: CallId
    owner: ArchiveId
    term: Term
    before: tuple[ArchivedSegment, ...]
    part: ManifestPart | None
    """Then ``before`` is empty."""

    target_bytes: int
    start_offset: Offset
    """Where the archive starts: segments of the part that end at or below it are deleted, and are left out."""


class LogPart(msgspec.Struct, frozen=True, array_like=True):
    """Whole batches of one partition, for the log in the store."""

    partition: SharedPartition
    base_offset: Offset
    end_offset: Offset
    start_offset: Offset
    """Where the log of the partition starts."""

    spans: list[int]
    """Parts of the arena: start, end, …"""


class AppendEntry(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Write the next entry of this shard's log in the store. → `Done`, or `Failed` with STALE_BROKER_EPOCH when the log
    is sealed. After any other failure the same entry follows.
    """

    id: CallId
    number: int
    parts: list[LogPart]


class TrimEntries(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Remove the entries of this shard's log from ``number`` to before ``end``, which is not its newest. → `Done`."""

    id: CallId
    number: int
    end: int


class Restore(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Make the directory of a partition from what the store has of it. → `Restored`."""

    id: CallId
    owner: ArchiveId
    directory: str
    voters: tuple[ReplicaId, ...]
    """Members of the group from now on; empty: those with which the group is opened."""

    asked_ns: int | None = None
    """On the monotonic clock of this machine: what was read of the store since then will do."""


class AskNewest(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """What the store has of a partition, for a replica that knows less. → `Newest`."""

    id: CallId
    owner: ArchiveId
    known: bytes
    """The ``epochs`` file of the replica; that of an empty log without one."""

    shared: bool
    """Its batches are in shared objects."""


class CleanLogs(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Remove entries of logs that are over which the archive has. → `Done`."""

    id: CallId


class EndLives(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """Seal every log that a broker has in the store. → `Done`."""

    id: CallId
    node: NodeId


class Target(msgspec.Struct, frozen=True, array_like=True):
    """An archived segment, or the part of the manifest that has it: exactly one of the two."""

    segment: ArchivedSegment | None
    part: ManifestPart | None

    @classmethod
    def of(cls, found: ArchivedSegment | ManifestPart) -> Target:
        """What a lookup in an `Archive` found."""
        return cls(found, None) if isinstance(found, ArchivedSegment) else cls(None, found)

    @property
    def end_offset(self) -> Offset:
        """End (exclusive) of the segment or of the part."""
        found = self.segment or self.part
        assert found is not None
        return found.end_offset


class Read(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Fill the spans with batches from the one that has ``offset``, below ``end_offset``. → `ReadDone`."""

    id: CallId
    owner: ArchiveId
    target: Target
    offset: Offset
    end_offset: Offset
    max_bytes: int
    minimum_one: bool
    spans: list[int]
    """Parts of the arena: start, end, …"""


class Find(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Find the first record from ``start_offset`` on, below ``end_offset``, with this time or later; with ``largest``
    the one with the largest time, and the first of several. → `Found`.
    """

    id: CallId
    owner: ArchiveId
    target: Target
    timestamp: TimestampMs
    start_offset: Offset
    end_offset: Offset
    largest: bool = False


class AskCache(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """What the caches have and miss. → `CacheReport`."""

    id: CallId


class Check(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Read the objects that are to replace others whole, and check them; with ``part_before`` write the part that has
    them in the place of the others. → `Checked`.
    """

    id: CallId
    owner: ArchiveId
    before: tuple[ArchivedSegment, ...]
    after: tuple[ArchivedSegment, ...]
    version: ManifestVersion
    """Of the manifest when the replacement is committed."""

    written_after_ms: int
    """An object that was written earlier is refused."""

    part_before: ManifestPart | None = None


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Forget blocks that start at ``start`` to before ``end``: their segments were replaced. → `Done`."""

    id: CallId
    owner: ArchiveId
    start: Offset
    end: Offset


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """End the lane."""


Command: TypeAlias = (
    Upload
    | Put
    | Examine
    | Replace
    | Remove
    | RemoveKeys
    | RemoveBelow
    | Read
    | Find
    | AskCache
    | Check
    | Forget
    | Share
    | Sweep
    | Join
    | AppendEntry
    | TrimEntries
    | Restore
    | AskNewest
    | CleanLogs
    | EndLives
    | Stop
)


class Done(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A command is carried out."""

    id: CallId


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A command is not carried out, or that is unknown; it may be repeated."""

    id: CallId
    code: ErrorCode
    message: str
    corrupt: bool = False
    """The bytes of the object, or of the local segment, are not what they should be."""


class Examined(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """An object as it was read; both are empty without one."""

    id: CallId
    version: str
    data: bytes


class Written(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """The object is in the store, durably, with this version."""

    id: CallId
    version: str


class Uploaded(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The segment is in the store, durably."""

    id: CallId
    segment: ArchivedSegment


class Shared(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The object is in the store, durably and checked. One segment for each part."""

    id: CallId
    segments: list[ArchivedSegment]


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """The object is in the store, and has no owner until it is committed."""

    id: CallId
    before: tuple[ArchivedSegment, ...]
    after: ArchivedSegment | None
    """None if the part has no small range: nothing was written."""


class Swept(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """How a sweep went."""

    id: CallId
    objects: int
    """Objects that were looked at."""

    removed: int
    after: str
    """Where to continue; empty at the end."""


class ReadDone(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """How a read went. ``need_bytes`` > 0: the first batch has that many bytes and did not fit; it is read again."""

    id: CallId
    size_bytes: int
    need_bytes: int
    aborted: list[AbortedSpan] = []
    """The aborted transactions among the batches that were read, as the segment's index has them."""


class Found(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The record that a `Find` asked for; offset -1 if the target has none."""

    id: CallId
    offset: Offset
    timestamp: TimestampMs
    leader_epoch: Term
    searched_to: Offset
    """End (exclusive) of what was searched."""


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """What lies between the readers of one partition that follow each other."""

    topic_id: str
    partition: int
    bytes_between: tuple[int, ...]
    """From the first reader to the second, from the second to the third, …"""


class CacheReport(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The caches of one shard."""

    id: CallId
    kind: str
    """``cache.type``; ``none`` if there is no warm cache."""

    is_on: bool
    size_bytes_max: int
    size_bytes: int
    blocks: int
    evicted: dict[str, int]
    served: dict[str, int]
    """Blocks given to readers, by where they came from."""

    dropped_fills: int
    gaps: list[Gap]


class Checked(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The objects are what they should be, and the part, if there is one, is in the store."""

    id: CallId
    part: ManifestPart | None = None


class Restored(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """The directory is there, or the store has nothing of the partition."""

    id: CallId
    records: int
    """Offsets of the log; 0 without a directory."""


class Newest(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """What is archived of a partition."""

    id: CallId
    state: bytes
    """The ``epochs`` file of a log that ends where its archive does."""

    missing: tuple[Offset, Offset] | None
    """First offset, and end (exclusive), of what no object has, although the replica's log says so."""


Reply: TypeAlias = (
    Done
    | Failed
    | Examined
    | Written
    | Uploaded
    | ReadDone
    | Found
    | CacheReport
    | Checked
    | Shared
    | Swept
    | Joined
    | Restored
    | Newest
)

CHANGES_LANE: Final = range(1)
UPLOAD_LANES: Final = range(1, 4)
READ_LANES: Final = range(4, 7)
JOINS_LANE: Final = range(7, 8)
LOG_LANE: Final = range(8, 9)
UPLOAD_PROCESS_LANES: Final = range(3)
"""Of the upload process."""

LANES: Final = LOG_LANE.stop
"""One lane for manifests and removals, in order; several for uploads and for reads; one for joins, which take long; and
one for the log in the store, for which producers wait. A shard with an upload process sends it the segments to upload.
"""

LANES_OF: Final[dict[type[Command], range]] = {
    Put: CHANGES_LANE,
    Examine: CHANGES_LANE,
    Replace: CHANGES_LANE,
    Remove: CHANGES_LANE,
    RemoveKeys: CHANGES_LANE,
    RemoveBelow: CHANGES_LANE,
    Sweep: CHANGES_LANE,
    Forget: CHANGES_LANE,
    TrimEntries: CHANGES_LANE,
    Restore: CHANGES_LANE,
    AskNewest: CHANGES_LANE,
    EndLives: CHANGES_LANE,
    CleanLogs: CHANGES_LANE,
    Upload: UPLOAD_LANES,
    Share: UPLOAD_LANES,
    Check: UPLOAD_LANES,
    Read: READ_LANES,
    Find: READ_LANES,
    AskCache: READ_LANES,
    Join: JOINS_LANE,
    AppendEntry: LOG_LANE,
}
"""The lanes that execute each command."""

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
