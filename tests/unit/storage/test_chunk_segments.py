"""A chunk as a segment file: a stream of batches in five files, through pieces, restarts, repeats, cuts and crashes."""

import errno
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "events"))
from chunk_support import batch_bytes

from millstream.errors import Corruption
from millstream.format.events import partition_directory_name, read_index
from millstream.format.events.batch import Producer
from millstream.format.events.sidecar import ENTRY_BYTES, SIDECAR_HEADER_BYTES
from millstream.format.names import segment_name
from millstream.storage.chunks import ChunkDisk
from millstream.storage.disk import read_at, read_file, write_all
from sim.engine.disk import KEPT, LOST, TORN, PowerFailure, SimDisk

DIRECTORY = f"/data/{partition_directory_name('t', bytes(16), 3)}"
PATH = f"{DIRECTORY}/{segment_name(0)}"


def made(count, seed=0, first=0, epoch=2):
    """Batches in a row."""
    rng = random.Random(seed)
    batches = []
    for number in range(count):
        events = [(b"m%d" % number, rng.randbytes(rng.randrange(40))) for _ in range(rng.randint(1, 3))]
        producer = Producer(5, 1, first)
        batches.append(batch_bytes(events, base_offset=first, leader_epoch=epoch, now_ms=number, producer=producer))
        first += len(events)
    return batches


def fresh(seed=1):
    disk = SimDisk(random.Random(seed))
    for path in ("/data", DIRECTORY):
        disk.make_directory(path)
    disk.sync_directory("/data")
    disk.sync_directory("/")
    return disk


def content(disk, path=PATH):
    file = disk.open(path)
    try:
        return bytes(read_at(file, 0, file.size()))
    finally:
        file.close()


@pytest.mark.parametrize("seed", range(20))
def test_the_stream_is_what_was_written_in_whatever_pieces(seed):
    rng = random.Random(seed)
    stream = b"".join(made(12, seed))
    inner = fresh()
    disk = ChunkDisk(inner)
    file = disk.open(PATH, create=True)
    at = 0
    while at < len(stream):
        end = min(len(stream), at + rng.randrange(1, 300))
        middle = rng.randint(at, end)
        assert write_all(file, [stream[at:middle], stream[middle:end]], at) == end - at
        at = end
        if rng.random() < 0.3:  # a write that failed is repeated from where it began
            at = max(0, at - rng.randrange(200))
        assert file.size() >= at
    assert content(disk) == stream
    for _ in range(50):
        start = rng.randrange(len(stream))
        size = rng.randrange(400)
        assert bytes(read_at(file, start, size)) == stream[start : start + size]
    assert content(ChunkDisk(inner)) == stream
    assert segment_name(0) in disk.list(DIRECTORY)


def test_a_cut_ends_at_a_batch_and_other_batches_follow():
    disk = ChunkDisk(fresh())
    batches = made(6)
    file = disk.open(PATH, create=True)
    write_all(file, [b"".join(batches)], 0)
    with pytest.raises(Corruption, match="inside of a batch"):
        file.truncate(len(batches[0]) + 1)
    kept = b"".join(batches[:4])
    file.truncate(len(kept))
    assert content(disk) == kept
    other = made(3, seed=9, first=disk.segment(PATH).chunk.next_offset, epoch=3)
    write_all(file, [b"".join(other)], len(kept))
    assert content(disk) == kept + b"".join(other)
    replaced = made(1, seed=5, epoch=7)
    write_all(file, replaced, 0)
    assert content(disk) == replaced[0]
    assert len(read_index(read_file(disk, f"{DIRECTORY}/chunk-000000.idx"))) == disk.segment(PATH).chunk.ends.events


def test_a_gap_and_bytes_that_are_no_events_are_refused():
    disk = ChunkDisk(fresh())
    file = disk.open(PATH, create=True)
    with pytest.raises(Corruption, match="after the end"):
        file.pwritev([b"x"], 1)
    records = bytearray(made(1)[0])
    records[21] = 0  # no longer marked as events
    with pytest.raises(Corruption, match="no event batch"):
        file.pwritev([records], 0)
    assert file.size() == 0


def test_chunks_are_numbered_in_a_row_and_removed_by_their_segments_names():
    disk = ChunkDisk(fresh())
    for base in (0, 10, 30):
        write_all(disk.open(f"{DIRECTORY}/{segment_name(base)}", create=True), made(1, first=base), 0)
    assert [disk.place(f"{DIRECTORY}/{segment_name(base)}")[0] for base in (0, 10, 30)] == [0, 1, 2]
    disk.unlink(f"{DIRECTORY}/{segment_name(0)}")
    with pytest.raises(FileNotFoundError):
        disk.size(f"{DIRECTORY}/{segment_name(0)}")
    assert disk.next_number(DIRECTORY) == 3
    assert not [name for name in disk.list(DIRECTORY) if name.startswith("chunk-000000")]


def test_a_chunk_with_the_number_of_one_that_was_synced_while_it_was_removed_is_durable():
    inner = fresh()
    disk = ChunkDisk(inner)
    file = disk.open(PATH, create=True)
    write_all(file, made(2), 0)
    going = []

    def sync_too(kind, path):
        if kind == "unlink":
            going.append(path)
            file.sync()  # a checkpoint, on its thread

    inner.before = sync_too
    disk.unlink(PATH)
    inner.before = None
    assert len(going) == 5
    assert not inner.list(DIRECTORY), "a checkpoint brings no name back"
    file.close()
    batches = made(2, seed=7, first=9)
    path = f"{DIRECTORY}/{segment_name(9)}"
    file = disk.open(path, create=True)
    write_all(file, batches, 0)
    file.sync()
    disk.sync_directory(DIRECTORY)
    inner.crash(torn=False)
    assert content(ChunkDisk(inner), path) == b"".join(batches)


@pytest.mark.parametrize("suffix", ["crc", "idx", "desc", "data", "meta"])
def test_a_removal_that_found_the_disk_full_is_completed_by_its_repetition(suffix):
    inner = fresh()
    disk = ChunkDisk(inner)
    write_all(disk.open(PATH, create=True), made(2), 0)
    inner.fail = lambda kind, path: errno.ENOSPC if kind == "unlink" and path.endswith(suffix) else 0
    with pytest.raises(OSError, match="No space"):
        disk.unlink(PATH)
    inner.fail = lambda kind, path: 0
    disk.unlink(PATH)
    assert not inner.list(DIRECTORY)
    with pytest.raises(FileNotFoundError):
        disk.unlink(PATH)


@pytest.mark.parametrize("way", ["rename", "remove"])
def test_a_directory_that_is_made_again_has_no_descriptor_of_the_one_before(way):
    inner = fresh()
    disk = ChunkDisk(inner)
    file = disk.open(PATH, create=True)
    write_all(file, made(2), 0)

    def read_too(kind, path):
        if kind == ("rename" if way == "rename" else "unlink"):
            read_at(file, 0, 50)

    if way == "rename":
        inner.before = read_too
        disk.rename(DIRECTORY, DIRECTORY + ".deleted")
    else:
        for name in inner.list(DIRECTORY):
            inner.before = read_too if name.endswith(("meta", "data")) else None
            inner.unlink(f"{DIRECTORY}/{name}")
        disk.remove_directory(DIRECTORY)
    inner.before = None
    disk.make_directory(DIRECTORY)
    batches = made(3, seed=7)
    file = disk.open(PATH, create=True)
    write_all(file, batches, 0)
    assert content(ChunkDisk(inner)) == b"".join(batches)


def test_a_chunk_of_another_partition_is_refused():
    inner = fresh()
    disk = ChunkDisk(inner)
    write_all(disk.open(PATH, create=True), made(1), 0)
    other = f"/data/{partition_directory_name('t', bytes(16), 4)}"
    inner.rename(DIRECTORY, other)
    with pytest.raises(Corruption, match="another chunk or partition"):
        ChunkDisk(inner).list(other)


@pytest.mark.parametrize("at", [0, 40, SIDECAR_HEADER_BYTES, SIDECAR_HEADER_BYTES + 3 * ENTRY_BYTES - 1, -1])
def test_a_sidecar_that_is_damaged_anywhere_is_no_torn_one_once_recovery_is_through(at):
    inner = fresh()
    write_all(ChunkDisk(inner).open(PATH, create=True), made(4), 0)
    ChunkDisk(inner).check_sidecars(DIRECTORY)
    sidecar = f"{DIRECTORY}/chunk-000000.crc"
    inner.flip(sidecar, at if at >= 0 else inner.size(sidecar) - 1)
    with pytest.raises(Corruption, match=r"chunk-000000\.crc: no s"):
        ChunkDisk(inner).check_sidecars(DIRECTORY)


def test_a_header_of_zeros_is_damage_where_entries_follow_and_otherwise_a_chunk_that_was_being_made():
    inner = fresh()
    write_all(ChunkDisk(inner).open(PATH, create=True), made(2), 0)
    inner.damage(f"{DIRECTORY}/chunk-000000.crc", 0, bytes(SIDECAR_HEADER_BYTES))
    with pytest.raises(Corruption, match="no sidecar header"):
        ChunkDisk(inner).check_sidecars(DIRECTORY)
    inner.open(f"{DIRECTORY}/chunk-000000.crc").truncate(SIDECAR_HEADER_BYTES)
    ChunkDisk(inner).check_sidecars(DIRECTORY)
    ChunkDisk(inner).sweep(DIRECTORY)
    assert not inner.list(DIRECTORY)


def test_what_another_process_wrote_is_seen_when_the_chunk_is_opened_again():
    inner = fresh()
    writer, reader = ChunkDisk(inner), ChunkDisk(inner)
    batches = made(4)
    file = writer.open(PATH, create=True)
    write_all(file, batches[:2], 0)
    assert content(reader) == b"".join(batches[:2])
    write_all(file, batches[2:], file.size())
    assert content(reader) == b"".join(batches)


@pytest.mark.parametrize("others", [0, 1])
def test_files_that_another_process_put_in_place_of_the_directory_are_seen(others):
    inner = fresh()
    writer, reader = ChunkDisk(inner), ChunkDisk(inner)
    paths = [f"{DIRECTORY}/{segment_name(base)}" for base in (0, 10, 20)]
    for path, base in zip(paths, (0, 10, 20), strict=True):
        write_all(writer.open(path, create=True), made(1, first=base), 0)
    assert content(reader, paths[2]) == b"".join(made(1, first=20)), "the third chunk has the segment"
    for path in paths:
        writer.unlink(path)
    later = made(1, seed=7, first=20)
    for path, batches in [(paths[1], made(1, first=10)), (paths[2], later)][1 - others :]:
        write_all(writer.open(path, create=True), batches, 0)
    reader.close_segment(paths[2])
    assert content(reader, paths[2]) == b"".join(later)


@pytest.mark.parametrize("left", [LOST, TORN, KEPT])
def test_after_every_crash_the_synced_batches_are_there_and_the_rest_can_be_written_again(left):
    batches = made(8)
    ends = [sum(map(len, batches[:count])) for count in range(9)]
    for crash_at in range(1, 400):
        inner = fresh(crash_at)
        inner.crash_at = crash_at
        synced = 0
        try:
            disk = ChunkDisk(inner)
            file = disk.open(PATH, create=True)
            for number, batch in enumerate(batches):
                write_all(file, [batch], ends[number])
                if number % 3 == 1:
                    file.sync()
                    disk.sync_directory(DIRECTORY)
                    synced = number + 1
        except PowerFailure:
            pass
        else:
            assert crash_at > 40
            return
        crashed = inner.crashed(random.Random(crash_at), left)
        again = ChunkDisk(crashed)
        again.sweep(DIRECTORY)
        file = again.open(PATH, create=True)
        assert bytes(read_at(file, 0, ends[synced])) == b"".join(batches[:synced]), crash_at
        write_all(file, batches[synced:], ends[synced])
        file.truncate(ends[-1])
        assert content(again) == b"".join(batches), crash_at
        file.sync()
        again.sync_directory(DIRECTORY)
        assert content(ChunkDisk(crashed.crashed(random.Random(1), LOST))) == b"".join(batches), crash_at
        index = read_index(read_file(again, f"{DIRECTORY}/chunk-000000.idx"))
        assert len(index) == again.segment(PATH).chunk.ends.events
    raise AssertionError("the history never ended")
