"""One partition's chunks: append, rotate, sync, recover, truncate, trim. The room's opening page has the promises.

Order of the writes of a batch: metadata, data, descriptors, index, and last the sidecar's entry. Nothing is read
before the entry is written, so a crash or an error between two writes leaves bytes that no reader knows, and the next
append writes over them.

Cutting goes the other way round: sidecar, index, descriptors, data, metadata. A crash in between leaves a chunk whose
sidecar is shorter than its files, which recovery cuts to the sidecar. A chunk at the front is removed under another
name of its sidecar, so that it is not taken for one that was lost.

A chunk whose sidecar has no whole header was being made when the power failed; nothing in it, or behind it, was
durable. Recovery ends with the first chunk that is not whole or does not begin where the one before ends, and removes
those behind it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from millstream.errors import Corruption
from millstream.format.events.batch import decode_event_batch
from millstream.format.events.chunk import (
    DATA_SUFFIX,
    DESC_SUFFIX,
    INDEX_SUFFIX,
    META_SUFFIX,
    SIDECAR_SUFFIX,
    SIZE_MAX,
    SUFFIXES,
    ChunkEnds,
    ChunkLimits,
    chunk_name,
    encode_descriptors,
    encode_index,
    parse_chunk_name,
    read_index,
)
from millstream.format.events.recovery import NOT_DURABLE, ChunkFiles, descriptors_again, recover_chunk
from millstream.format.events.sidecar import (
    SIDECAR_HEADER_BYTES,
    SidecarHeader,
    encode_entry,
    encode_header,
    entry_of,
)
from millstream.format.names import DELETED_SUFFIX, PARTITION_LEVELS
from millstream.model.events import ChunkId
from millstream.model.quantities import FilePosition, Offset
from millstream.storage.chunks.chunk import Chunk
from millstream.storage.chunks.reads import ChunkReads
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import FileCache, read_at, read_file, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.format.events.batch import EventBatch
    from millstream.format.events.recovery import RecoveredChunk
    from millstream.storage.disk import Buffer, Disk, File

_T = TypeVar("_T")

FD_CACHE_CAPACITY: Final = 64
"""Mofka's default."""

_TRIMMED_SUFFIX: Final = SIDECAR_SUFFIX + DELETED_SUFFIX
"""The sidecar's name in a chunk at the front that is being removed."""

_CUT_ORDER: Final = (SIDECAR_SUFFIX, INDEX_SUFFIX, DESC_SUFFIX, DATA_SUFFIX, META_SUFFIX)


class ChunkStore:
    """The chunks of one partition. Lifecycle: ``open`` … ``close``; after a failed ``sync`` only ``close``."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        partition_uuid: bytes,
        *,
        limits: ChunkLimits | None = None,
        open_files_max: int = FD_CACHE_CAPACITY,
    ) -> None:
        """Nothing is read yet. ``directory`` is ``<path>/<topic>-<uuid>``; ``partition_uuid`` has 16 bytes.

        ``open_files_max`` is the capacity of the descriptor cache, Mofka's ``fd_cache_capacity``.
        """
        self.directory = directory
        self.files = FileCache(disk, open_files_max)
        self.chunks: list[Chunk] = []
        """In order; the last one is written to. Empty before the first append."""
        self.reads = ChunkReads(self.files, self.chunks)
        self.damaged: str | None = None
        """What recovery found of durable events that cannot be trusted; the store is then not to be appended to."""
        self._disk = disk
        self._uuid = partition_uuid
        self._limits = limits or ChunkLimits()
        self._dirty: set[str] = set()
        self._names_changed = False

    @property
    def start_offset(self) -> Offset:
        """Offset of the first event that is kept."""
        return self.chunks[0].base_offset if self.chunks else Offset(0)

    @property
    def next_offset(self) -> Offset:
        """Offset behind the last event (exclusive)."""
        return self.chunks[-1].next_offset if self.chunks else Offset(0)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(
            chunk.ends.meta + chunk.ends.data + chunk.ends.desc + chunk.ends.index + chunk.sidecar_end
            for chunk in self.chunks
        )

    # -- start and end -------------------------------------------------------------------------------------------------

    def open(self, durable_offset: Offset = NOT_DURABLE) -> None:
        """Find the chunks, recover each, cut what cannot be trusted.

        Args:
            durable_offset: events before it were durable. What is missing of them is damage, not a torn tail: it sets
                ``damaged``, and nothing is cut.

        Raises:
            Corruption: a sidecar belongs to another chunk or partition, or a chunk is missing between two others.
        """
        found = self._found()
        recovered: list[tuple[Chunk, RecoveredChunk]] = []
        for number, suffixes in found:
            one = self._recover(number, suffixes, recovered[-1][0].next_offset if recovered else None)
            if one is None:
                break
            recovered.append(one)
            if one[1].stopped is not None:
                break
        self.chunks += [chunk for chunk, _ in recovered]
        if self.next_offset < durable_offset:
            why = recovered[-1][1].stopped if recovered else None
            self.damaged = f"{self.directory}: {why or f'ends at {self.next_offset}'}, {durable_offset} was durable"
            return
        for chunk, one in recovered:
            self._mend(chunk, one)
        for number, suffixes in found[len(recovered) :]:
            self._discard(number, suffixes)

    def close(self) -> None:
        """Close every file. Nothing is synced."""
        self.files.close()

    # -- write ---------------------------------------------------------------------------------------------------------

    def append(self, data: Buffer) -> None:
        """Write one event batch that was checked before, as it stands in the log.

        Raises:
            OSError: nothing is appended; the same batch may be appended again.
            AssertionError: the batch does not continue the store.
        """
        batch = decode_event_batch(data, event_bytes_max=2 * SIZE_MAX, verify=False)
        base_offset = Offset(batch.header.base_offset)
        assert base_offset == self.next_offset or not self.chunks, f"{base_offset} follows {self.next_offset}"
        chunk = self.chunks[-1] if self.chunks else self._new_chunk(ChunkId(0), base_offset)
        if self._limits.full(chunk.ends):
            chunk = self._new_chunk(ChunkId(chunk.id + 1), base_offset)
        self._write_batch(chunk, batch)

    def sync(self) -> None:
        """Make everything that was appended durable: files first, then the names.

        Raises:
            OSError: nothing written is trusted from now on; the process stops.
        """
        for path in sorted(self._dirty):
            self._with(path, lambda file: file.sync())
        self._dirty.clear()
        if self._names_changed:
            self._disk.sync_directory(self.directory)
            self._names_changed = False

    # -- cut -----------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: Offset) -> None:
        """Remove the events from ``offset`` on, which begins a batch or is the end. Durable after ``sync``.

        Raises:
            AssertionError: the offset is inside a batch.
        """
        while self.chunks and self.chunks[-1].base_offset >= offset:
            if len(self.chunks) == 1 and self.chunks[-1].base_offset == offset:
                self._cut(self.chunks[-1], 0)
                return
            self._remove(self.chunks.pop())
        if not self.chunks or self.next_offset <= offset:
            return
        chunk = self.chunks[-1]
        place = chunk.batch_at(offset)
        assert chunk.base_offsets[place] == offset, f"{offset} is inside of the batch at {chunk.base_offsets[place]}"
        self._cut(chunk, place)

    def trim_to(self, offset: Offset) -> int:
        """Remove whole chunks whose events all lie before ``offset``; the last chunk stays. Returns their number."""
        count = 0
        while len(self.chunks) > 1 and self.chunks[1].base_offset <= offset:
            chunk = self.chunks.pop(0)
            self.files.forget(chunk.path + SIDECAR_SUFFIX)
            self._disk.rename(chunk.path + SIDECAR_SUFFIX, chunk.path + _TRIMMED_SUFFIX)
            self._remove(chunk, (*_CUT_ORDER[1:], _TRIMMED_SUFFIX))
            count += 1
        return count

    def delete(self) -> None:
        """Remove every file and the directory."""
        while self.chunks:
            self._remove(self.chunks.pop())
        for name in self._disk.list(self.directory):
            self._disk.unlink(f"{self.directory}/{name}")
        self._disk.remove_directory(self.directory)
        self._dirty.clear()
        self._names_changed = False

    # -- details -------------------------------------------------------------------------------------------------------

    def _found(self) -> list[tuple[ChunkId, set[str]]]:
        """The chunks in the directory and which of their files there are, in order."""
        try:
            names = self._disk.list(self.directory)
        except FileNotFoundError:
            return []
        found: dict[ChunkId, set[str]] = {}
        for name in [one for one in names if one.endswith(_TRIMMED_SUFFIX)]:
            trimmed = name.removesuffix(_TRIMMED_SUFFIX)
            for one in sorted(names):
                if one.startswith(trimmed + "."):
                    names.remove(one)
                    if one != name:
                        self._disk.unlink(f"{self.directory}/{one}")
            self._disk.unlink(f"{self.directory}/{name}")
            self._names_changed = True
        for name in names:
            chunk = parse_chunk_name(name)
            if chunk is not None:
                found.setdefault(chunk, set()).add(name[name.rindex(".") :])
        numbers = sorted(found)
        for earlier, later in pairwise(numbers):
            if later != earlier + 1:
                raise Corruption(f"{self.directory} lacks chunk {earlier + 1}")
        return [(number, found[number]) for number in numbers]

    def _recover(
        self, number: ChunkId, suffixes: set[str], base_offset: Offset | None
    ) -> tuple[Chunk, RecoveredChunk] | None:
        """What can be trusted of one chunk; None if it was being made, or does not begin at ``base_offset``."""
        path = self._path(number)
        sidecar = read_file(self._disk, path + SIDECAR_SUFFIX) if SIDECAR_SUFFIX in suffixes else bytearray()
        if len(sidecar) < SIDECAR_HEADER_BYTES:
            return None
        for suffix in set(SUFFIXES) - suffixes:
            self._with(path + suffix, lambda _: None, create=True)
            self._names_changed = True
        index = read_file(self._disk, path + INDEX_SUFFIX)
        try:
            found = recover_chunk(ChunkFiles(sidecar, index, self._reader(path)), number)
        except Corruption:
            if any(sidecar[:SIDECAR_HEADER_BYTES]):
                raise
            return None  # the header did not reach the disk, the size of the file did
        if found.header.partition_uuid != self._uuid:
            raise Corruption(f"{path}{SIDECAR_SUFFIX} belongs to another partition")
        if base_offset is not None and found.header.base_offset != base_offset:
            return None
        chunk = Chunk(number, path, found.header.base_offset)
        for entry in found.batches:
            chunk.add(entry)
        return chunk, found

    def _mend(self, chunk: Chunk, found: RecoveredChunk) -> None:
        """Cut what is behind the trusted part, and write lost descriptors again."""
        if found.sound_descriptors < chunk.ends.events:
            index = read_file(self._disk, chunk.path + INDEX_SUFFIX)
            before = _ends_before(index, found.sound_descriptors)
            again = descriptors_again(index, chunk.id, before, chunk.ends.events)
            self._write(chunk.path + DESC_SUFFIX, [again], before.desc)
        for suffix, end in _ends_of(chunk).items():
            if self._with(chunk.path + suffix, lambda file: file.size()) > end:
                self._truncate(chunk.path + suffix, end)

    def _discard(self, number: ChunkId, suffixes: set[str]) -> None:
        """Remove a chunk that was being made, or lies behind one that was cut."""
        for suffix in (one for one in _CUT_ORDER if one in suffixes):
            self.files.forget(self._path(number) + suffix)
            self._disk.unlink(self._path(number) + suffix)
        self._names_changed = True

    def _new_chunk(self, number: ChunkId, base_offset: Offset) -> Chunk:
        """Make the five files of a chunk."""
        if not self.chunks:
            make_directories_durably(self._disk, self.directory, PARTITION_LEVELS)
        chunk = Chunk(number, self._path(number), base_offset)
        self._names_changed = True
        for suffix in SUFFIXES:
            self._with(chunk.path + suffix, lambda file: file.truncate(0), create=True)
            self._dirty.add(chunk.path + suffix)
        header = encode_header(SidecarHeader(number, base_offset, self._uuid))
        self._write(chunk.path + SIDECAR_SUFFIX, [header], FilePosition(0))
        self.chunks.append(chunk)
        return chunk

    def _write_batch(self, chunk: Chunk, batch: EventBatch) -> None:
        before = chunk.ends
        index = encode_index(before, batch.metadata_sizes, batch.data_sizes)
        descriptors = encode_descriptors(chunk.id, before, batch.data_sizes)
        entry = entry_of(batch, before, index, descriptors)
        self._write(chunk.path + META_SUFFIX, [batch.metadata], before.meta)
        self._write(chunk.path + DATA_SUFFIX, [batch.data], before.data)
        self._write(chunk.path + DESC_SUFFIX, [descriptors], before.desc)
        self._write(chunk.path + INDEX_SUFFIX, [index], before.index)
        self._write(chunk.path + SIDECAR_SUFFIX, [encode_entry(entry)], chunk.sidecar_end)
        chunk.add(entry)

    def _cut(self, chunk: Chunk, batch_count: int) -> None:
        """Cut a chunk to its first batches."""
        kept = self.reads.entries(chunk, 0, batch_count)
        chunk.base_offsets = chunk.base_offsets[:0]
        chunk.ends, chunk.last_timestamp = ChunkEnds(), -1
        for entry in kept:
            chunk.add(entry)
        ends = _ends_of(chunk)
        for suffix in _CUT_ORDER:
            self._truncate(chunk.path + suffix, ends[suffix])

    def _remove(self, chunk: Chunk, suffixes: Sequence[str] = _CUT_ORDER) -> None:
        """Remove the files of a chunk, the sidecar first: without it the rest is no chunk."""
        self._names_changed = True
        self._dirty.discard(chunk.path + SIDECAR_SUFFIX)
        for suffix in suffixes:
            path = chunk.path + suffix
            self.files.forget(path)
            self._dirty.discard(path)
            self._disk.unlink(path)

    def _path(self, number: ChunkId) -> str:
        return f"{self.directory}/{chunk_name(number, '')}"

    def _write(self, path: str, buffers: list[Buffer], position: FilePosition) -> None:
        self._with(path, lambda file: write_all(file, [one for one in buffers if len(one)], position))
        self._dirty.add(path)

    def _truncate(self, path: str, size_bytes: int) -> None:
        self._with(path, lambda file: file.truncate(size_bytes))
        self._dirty.add(path)

    def _reader(self, path: str) -> Callable[[str, FilePosition, FilePosition], bytearray]:
        return lambda suffix, start, end: self._with(path + suffix, lambda file: read_at(file, start, end - start))

    def _with(self, path: str, use: Callable[[File], _T], *, create: bool = False) -> _T:
        file = self.files.acquire(path, create=create)
        try:
            return use(file)
        finally:
            self.files.release(file)


def _ends_of(chunk: Chunk) -> dict[str, int]:
    ends = chunk.ends
    return {
        META_SUFFIX: ends.meta,
        DATA_SUFFIX: ends.data,
        DESC_SUFFIX: ends.desc,
        INDEX_SUFFIX: ends.index,
        SIDECAR_SUFFIX: chunk.sidecar_end,
    }


def _ends_before(index: bytearray, event_count: int) -> ChunkEnds:
    """The ends of the first events of an index."""
    records = read_index(index[: ChunkEnds(event_count).index])
    if not records:
        return ChunkEnds()
    last = records[-1]
    meta, data = last.meta_position + last.meta_size, last.data_position + last.data_size
    return ChunkEnds(event_count, FilePosition(meta), FilePosition(data))
