"""Reads segments whole and says which are not what they should be: objects of a bucket and files of brokers.

::

    pieces ──► waves of Spark tasks, a piece each ──► checked.jsonl, synced after each wave ──► findings

A piece is sound if it has exactly the bytes that its manifest says, every batch matches its checksum, the offsets go
from the first to the end without a gap, and leader epochs never fall. A file that compaction wrote may have gaps, and
an object, because its log may have been compacted before. For an object its blocks, leader epochs and checksum must
also be those of its index and of the manifest.

Nothing is written but the job's own directory. Killed at any time and started again, the job leaves out the pieces that
it has found sound, and reads all others, those with a finding included. A last line that the crash cut off is
forgotten. A job that has come to its end starts again the next time.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from crc32c import crc32c
from pyspark.sql import SparkSession

from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.format.archive import SegmentIndex, decode_index
from millstream.format.manifest import ArchivedSegment, ArchiveId
from millstream.format.segment import BATCH_HEADER_BYTES, WalkEnd, may_follow, parse_batch
from millstream.format.shared_object import object_key, read_object_index, segment_index
from millstream.model.quantities import FilePosition, Offset
from millstream.model.shared import NO_OBJECT
from millstream.objects import ObjectKey
from millstream.spark.archived_segment import task_store
from millstream.spark.jobs import JOB_FILE, begin_job, job_of
from millstream.wire.records import batch_crc_ok

READ_BYTES: Final = 8 << 20
"""Bytes of one read. A batch or block that is larger is read whole."""

_CHECKED_FILE: Final = "checked.jsonl"
_PATIENCE_S: Final = 30.0


class Piece(msgspec.Struct, frozen=True):
    """One segment to be read. Offsets: base inclusive, end exclusive."""

    topic: str
    partition: int
    place: str
    """Key of the object, or path of the file."""

    base_offset: int
    end_offset: int
    size_bytes: int
    topic_id: str = ""
    """In hexadecimal, of an object."""

    archived: ArchivedSegment | None = None
    """What the manifest says of an object; None for a file."""

    gaps: bool = False
    """Whether offsets may be missing inside."""


class Checked(msgspec.Struct, frozen=True):
    """What reading a piece found. ``finding`` is empty for a sound one, and else ``damaged`` or ``missing``."""

    piece: Piece
    batches: int = 0
    finding: str = ""
    what: str = ""


class ScrubJob(msgspec.Struct, frozen=True):
    """What a job reads: these topics, or all of them."""

    topics: tuple[str, ...]


# -- one piece ---------------------------------------------------------------------------------------------------------


class _Walk:
    """The batches of one piece, in order. Everything that raises is `Corruption`."""

    def __init__(self, piece: Piece) -> None:
        self.batches = 0
        self.expected = piece.base_offset
        self.position = 0
        self.epochs: list[tuple[int, int]] = []
        self._piece = piece

    def take(self, data: memoryview) -> int:
        """Check the whole batches at the start of ``data``; returns their bytes."""
        at = 0
        while at + BATCH_HEADER_BYTES <= len(data) or self.position + len(data) == self._piece.size_bytes:
            if at == len(data):
                break
            try:
                batch = parse_batch(data, at, self.position + at, self._piece.size_bytes)
            except WalkEnd as end:
                raise Corruption(f"byte {end.position}: {end.reason}") from None
            if at + batch.size > len(data):
                break
            where = f"the batch at byte {batch.position}, offset {batch.base_offset},"
            if not may_follow(batch, Offset(self.expected), gaps=self._piece.gaps):
                raise Corruption(f"{where} stands where offset {self.expected} should")
            if not batch_crc_ok(data[at : at + batch.size]):
                raise Corruption(f"{where} does not match its checksum")
            if not self.epochs or batch.leader_epoch > self.epochs[-1][0]:
                self.epochs.append((batch.leader_epoch, batch.base_offset))
            elif batch.leader_epoch < self.epochs[-1][0]:
                raise Corruption(f"{where} has leader epoch {batch.leader_epoch} after {self.epochs[-1][0]}")
            self.expected = batch.last_offset + 1
            self.batches += 1
            at += batch.size
        self.position += at
        return at

    def end(self) -> None:
        """The piece has no more bytes."""
        if self.position != self._piece.size_bytes or self.expected != self._piece.end_offset:
            raise Corruption(
                f"it ends at byte {self.position} and offset {self.expected}, not at byte {self._piece.size_bytes} and "
                f"offset {self._piece.end_offset}"
            )


def check(piece: Piece, url: str) -> Checked:
    """Read a piece, an object from the store at ``url``.

    Raises:
        MillstreamError: the store does not answer, or refuses. Nothing is known of the piece.
    """
    walk = _Walk(piece)
    try:
        if piece.archived is None:
            _check_file(piece, walk)
        elif not _check_object(piece, piece.archived, url, walk):
            return Checked(piece, 0, "missing", "the store has no such object")
    except FileNotFoundError:
        return Checked(piece, 0, "missing", "there is no such file")
    except OSError as error:
        return Checked(piece, walk.batches, "damaged", f"it cannot be read: {error.strerror or error}")
    except Corruption as error:
        return Checked(piece, walk.batches, "damaged", error.message)
    return Checked(piece, walk.batches)


def _check_file(piece: Piece, walk: _Walk) -> None:
    descriptor = os.open(piece.place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        room, whole = READ_BYTES, True
        while whole and walk.position < piece.size_bytes:
            wanted = min(room, piece.size_bytes - walk.position)
            data = os.pread(descriptor, wanted, walk.position)
            whole = len(data) == wanted
            # A batch that does not fit is read again, with more room.
            room = READ_BYTES if walk.take(memoryview(data)) else 2 * room
    finally:
        os.close(descriptor)
    walk.end()


def _check_object(piece: Piece, segment: ArchivedSegment, url: str, walk: _Walk) -> bool:
    """Whether the object is there. Of a shared object the range of the piece is read."""
    owner = ArchiveId(uuid.UUID(piece.topic_id), piece.partition)
    is_shared = segment.object_id != NO_OBJECT
    store, key = task_store(url, _PATIENCE_S), ObjectKey(object_key(owner, segment))
    info = store.head(key)
    if info is None:
        return False
    size, whole = segment.size_bytes, segment.size_bytes + segment.index_bytes
    place = FilePosition(0)
    if is_shared:
        known = read_object_index(segment.object_id, info.size_bytes, partial(store.get, key))
        index, place = segment_index(known, owner, segment)
    elif info.size_bytes != whole:
        raise Corruption(f"it has {info.size_bytes} bytes, {whole} are expected")
    else:
        index = decode_index(owner, segment, store.get(key, FilePosition(size), FilePosition(whole)))
    checksum = 0
    for first, last in block_ranges(index, size):
        start = index.blocks[first].position
        data = store.get(key, FilePosition(place + start), FilePosition(place + block_end(index, size, last)))
        for number in range(first, last + 1):
            block = index.blocks[number]
            part = data[block.position - start : block_end(index, size, number) - start]
            if crc32c(part) != block.checksum or block.base_offset != walk.expected:
                raise Corruption(f"the block at byte {block.position} is not what the index says")
            if walk.take(part) != len(part):
                raise Corruption(f"the block at byte {block.position} ends inside of a batch")
        checksum = crc32c(data, checksum)
    walk.end()
    if is_shared:
        return True  # its index has a checksum of each block, and nothing of the whole range
    if checksum != segment.checksum:
        raise Corruption("its bytes do not match the checksum in the manifest")
    if list(index.epochs) != walk.epochs:
        raise Corruption("its leader epochs are not those of its index")
    return True


def block_ranges(index: SegmentIndex, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The blocks of a segment of ``size_bytes`` as (first, last) of each read."""
    first = 0
    for number in range(1, len(index.blocks)):
        if block_end(index, size_bytes, number) - index.blocks[first].position > READ_BYTES:
            yield first, number - 1
            first = number
    yield first, len(index.blocks) - 1


def block_end(index: SegmentIndex, size_bytes: int, number: int) -> int:
    """Where a block of a segment of ``size_bytes`` ends, as a byte of its object."""
    return index.blocks[number + 1].position if number + 1 < len(index.blocks) else size_bytes


# -- between pieces ----------------------------------------------------------------------------------------------------


def find_holes(pieces: Sequence[Piece], start_offset: int) -> Iterator[tuple[int, int]]:
    """The offsets (end exclusive) from ``start_offset`` on that no piece has, up to the last piece's end. The pieces
    are those of one partition in one place, in order.
    """
    expected = start_offset
    for piece in pieces:
        if piece.base_offset > expected:
            yield expected, piece.base_offset
        expected = max(expected, piece.end_offset)


# -- the job -----------------------------------------------------------------------------------------------------------


def begin(directory: str, topics: Sequence[str]) -> dict[Piece, Checked]:
    """Start the job of a directory, or continue with it. Returns what it has found sound so far.

    Raises:
        Rejected: the directory is that of another job.
    """
    job, known = ScrubJob(tuple(sorted(topics))), job_of(directory, ScrubJob)
    if known is None:
        begin_job(directory, job)
        return {}
    if known != job:
        named = ", ".join(known.topics) or "all topics"
        raise Rejected(f"{directory} belongs to a job that reads {named}: give this one another --id")
    return {one.piece: one for one in _lines(os.path.join(directory, _CHECKED_FILE)) if not one.finding}


def run(
    spark: SparkSession,
    directory: str,
    pieces: Sequence[Piece],
    url: str,
    *,
    advance: Callable[[int], None],
    stopped: Callable[[], bool],
) -> list[Checked]:
    """Read the pieces, and note after each wave what was found. ``advance`` counts bytes. Ends early if ``stopped``.

    Raises:
        MillstreamError: the store does not answer. What was noted stays.
    """
    found: list[Checked] = []
    tasks = max(1, spark.sparkContext.defaultParallelism)
    ask = partial(_check_or_fail, url=url)
    path = os.path.join(directory, _CHECKED_FILE)
    _drop_torn_line(path)
    with open(path, "ab") as file:
        for at in range(0, len(pieces), 4 * tasks):
            if stopped():
                break
            wave = [msgspec.msgpack.encode(one) for one in pieces[at : at + 4 * tasks]]
            answers = spark.sparkContext.parallelize(wave, min(tasks, len(wave))).map(ask).collect()
            checked = [msgspec.msgpack.decode(one, type=Checked | str) for one in answers]
            known = [one for one in checked if isinstance(one, Checked)]
            file.write(b"".join(msgspec.json.encode(one) + b"\n" for one in known))
            file.flush()
            os.fsync(file.fileno())
            found += known
            advance(sum(one.piece.size_bytes for one in known))
            failed = [one for one in checked if isinstance(one, str)]
            if failed:
                raise Rejected(f"{failed[0]}; the same command continues from here")
    return found


def end(directory: str) -> None:
    """The job has come to its end: the next one of this directory reads everything again."""
    for name in (_CHECKED_FILE, JOB_FILE):
        if os.path.exists(path := os.path.join(directory, name)):
            os.remove(path)


def _check_or_fail(data: bytes, url: str) -> bytes:
    """`check` in a task: a store that fails is an answer, and no task that Spark repeats."""
    try:
        return msgspec.msgpack.encode(check(msgspec.msgpack.decode(data, type=Piece), url))
    except MillstreamError as error:
        return msgspec.msgpack.encode(error.message)


def _lines(path: str) -> Iterator[Checked]:
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                try:
                    yield msgspec.json.decode(line, type=Checked)
                except msgspec.MsgspecError:
                    continue  # torn by a crash of the machine: its piece is read again


def _drop_torn_line(path: str) -> None:
    if os.path.exists(path):
        with open(path, "rb+") as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
