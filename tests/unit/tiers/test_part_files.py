"""Parts of manifests on the disk spare requests over a restart, stay within bounds, and are always checked."""

import os
import random
import stat
import uuid

import pytest
from numbered_segments import OWNER, numbered

from millstream.errors import Rejected
from millstream.format.archive import part_key
from millstream.format.manifest import ArchiveId, encode_part
from millstream.objects import ObjectKey
from millstream.storage.disk import SystemDisk
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers import part_files
from millstream.tiers.manifest import MEMORY_BYTES_MAX, Archive
from millstream.tiers.messages import Done, Remove, RemoveKeys
from millstream.tiers.part_files import BYTES_MAX, PartFiles
from millstream.tiers.parts import Parts
from millstream.tiers.process import ArchiveWorker
from sim.engine.objects import MemoryStore

OTHER = ArchiveId(uuid.UUID(int=2), 3)


class Counting(MemoryStore):
    """Counts what is read."""

    def __init__(self):
        super().__init__()
        self.gets = 0

    def get(self, key, start, end):
        self.gets += 1
        return super().get(key, start, end)


def archived(store, count, memory_bytes_max, owner=OWNER):
    """The parts of a partition with that many segments, in the store, oldest first."""
    archive, parts = Archive(0, memory_bytes_max), []
    for segment in numbered(count):
        archive.append(segment)
        while (spill := archive.next_spill()) is not None:
            store.put(ObjectKey(part_key(owner, spill.part)), [encode_part(owner, spill.runs)])
            archive.spilled(spill.part)
            parts.append(spill.part)
    return parts


def read_back(reader, parts, owner=OWNER):
    """Look up every segment that is in parts, the newest first; how many there were."""
    return sum(len(reader.segments_of(owner, part)) for part in reversed(parts))


def lives(directory, store, parts, bytes_max=BYTES_MAX):
    """A broker that starts, reads all of history from its end to its start, and stops: GETs, and where from."""
    before, sources = store.gets, []
    reader = Parts(store, PartFiles(directory, bytes_max), sources.append)
    assert read_back(reader, parts) == parts[-1].end_offset // 10
    return store.gets - before, sources


@pytest.mark.parametrize(
    ("count", "memory_bytes_max"),
    [(20_000, 2_000), pytest.param(1_000_000, MEMORY_BYTES_MAX, marks=[pytest.mark.slow])],
)
def test_history_is_found_without_a_get_after_a_restart(tmp_path, count, memory_bytes_max):
    store = Counting()
    parts = archived(store, count, memory_bytes_max)
    assert len(parts) > 150, "more than memory keeps"
    assert parts[-1].end_offset > 9 * count
    if count < 100_000:
        without = Parts(store)
        read_back(without, parts)
        read_back(without, parts)
        assert store.gets == 2 * len(parts), "without files a second pass asks again"
    directory = f"{tmp_path}/cache"
    gets, sources = lives(directory, store, parts)
    assert gets == len(parts) and set(sources) == {"store"}
    gets, sources = lives(directory, store, parts)
    assert gets == 0 and set(sources) == {"disk"}


def test_the_files_take_no_more_than_their_bound_and_the_longest_unused_go(tmp_path):
    store = Counting()
    parts = archived(store, 10_000, 2_000)
    directory = f"{tmp_path}/cache"
    bound = 40_000
    lives(directory, store, parts, bound)
    files = PartFiles(directory, bound)
    assert 30_000 < files.size_bytes <= bound
    assert files.size_bytes == sum(entry.stat().st_size for entry in os.scandir(directory))
    assert files.get(OWNER, parts[0]) and not files.get(OWNER, parts[-1]), "the newest was read first"
    oldest = min(os.scandir(directory), key=lambda entry: entry.stat().st_mtime_ns).name
    smaller = PartFiles(directory, files.size_bytes - 1)
    assert smaller.size_bytes < files.size_bytes
    assert oldest not in os.listdir(directory)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other part", "directory"])
def test_a_file_that_is_not_the_part_is_never_used(tmp_path, damage):
    store = Counting()
    parts = archived(store, 5_000, 2_000)
    directory = f"{tmp_path}/cache"
    lives(directory, store, parts)
    names = sorted(os.listdir(directory))
    chance = random.Random(1)
    for name in names:
        path = f"{directory}/{name}"
        with open(path, "rb") as file:
            data = bytearray(file.read())
        match damage:
            case "flip":
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case "cut":
                del data[chance.randrange(len(data)) :]
            case "empty":
                data.clear()
            case "other part":
                with open(f"{directory}/{names[-1] if name != names[-1] else names[0]}", "rb") as file:
                    data = bytearray(file.read())
            case _:
                os.unlink(path)
                os.mkdir(path)
                continue
        with open(path, "wb") as file:
            file.write(data)
    gets, _ = lives(directory, store, parts)
    assert gets >= len(parts) - 1
    expected = [one for part in parts for one in Parts(store).segments_of(OWNER, part)]
    reader = Parts(store, PartFiles(directory, BYTES_MAX))
    assert [one for part in parts for one in reader.segments_of(OWNER, part)] == expected
    if damage != "directory":
        assert set(lives(directory, store, parts)[1]) == {"disk"}, "what was wrong has been replaced"


def test_a_file_of_another_partition_is_not_used(tmp_path):
    store = Counting()
    parts = archived(store, 1_000, 2_000)
    directory = f"{tmp_path}/cache"
    lives(directory, store, parts)
    for name in os.listdir(directory):
        os.rename(f"{directory}/{name}", f"{directory}/{part_files._prefix(OTHER)}{name.split('-', 2)[2]}")
    archived(store, 1_000, 2_000, OTHER)
    gets = store.gets
    reader = Parts(store, PartFiles(directory, BYTES_MAX))
    read_back(reader, parts, OTHER)
    assert store.gets - gets == len(parts)


def test_what_a_dead_broker_was_writing_is_removed(tmp_path):
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    (directory / "half.part.77.new").write_bytes(b"half")
    PartFiles(str(directory), BYTES_MAX)
    assert not list(directory.iterdir())


def test_parts_that_are_dropped_have_no_files(tmp_path):
    store = Counting()
    parts = archived(store, 2_000, 2_000)
    archived(store, 2_000, 2_000, OTHER)
    files = PartFiles(f"{tmp_path}/cache", BYTES_MAX)
    reader = Parts(store, files)
    read_back(reader, parts)
    read_back(reader, parts, OTHER)
    files.drop(OWNER, parts[:2])
    assert files.get(OWNER, parts[0]) is None and files.get(OWNER, parts[2]) is not None
    files.drop(OWNER)
    assert files.get(OWNER, parts[2]) is None and files.get(OTHER, parts[0]) is not None
    assert files.size_bytes == sum(entry.stat().st_size for entry in os.scandir(f"{tmp_path}/cache"))


@pytest.mark.parametrize("trouble", ["no directory", "no room", "little room"])
def test_a_disk_in_trouble_costs_requests_and_nothing_else(tmp_path, monkeypatch, capfd, trouble):
    store = Counting()
    parts = archived(store, 2_000, 2_000)
    directory = f"{tmp_path}/cache"
    if trouble == "no directory":
        monkeypatch.setattr(part_files, "check_directory", refused)
    elif trouble == "no room":
        monkeypatch.setattr(part_files.os, "rename", full)
    gets, _ = lives_on(PartFiles(directory, BYTES_MAX, 1.1 if trouble == "little room" else 0.1), store, parts)
    assert gets == len(parts)
    assert not os.path.exists(directory) or not os.listdir(directory)
    assert capfd.readouterr().err.count("parts of manifests") == (trouble != "little room")


def lives_on(files, store, parts):
    before, sources = store.gets, []
    read_back(Parts(store, files, sources.append), parts)
    return store.gets - before, sources


def refused(directory):
    raise Rejected(f"{directory} is not the broker's")


def full(*_):
    raise OSError(28, "No space left on device")


def test_the_files_are_for_the_broker_alone(tmp_path):
    store = Counting()
    directory = f"{tmp_path}/cache"
    lives(directory, store, archived(store, 1_000, 2_000))
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(directory)} == {0o600}


def test_the_archive_process_keeps_parts_and_drops_what_it_removes(tmp_path):
    store, stats = Counting(), StatsSlab(0, "archive")
    parts = archived(store, 2_000, 2_000)
    files = PartFiles(f"{tmp_path}/cache", BYTES_MAX)
    worker = ArchiveWorker(store, store, SystemDisk(), memoryview(bytearray(4096)), 1e12, stats=stats, part_files=files)
    read_back(worker.reader, parts)
    assert stats.counter("archive_parts", source="store").value == len(parts)
    read_back(worker.reader, parts[-3:])
    assert stats.counter("archive_parts", source="memory").value == 3
    assert isinstance(worker.carry_out(Remove(1, OWNER, (), (parts[0],), (parts[1],))), Done)
    assert [files.get(OWNER, part) is None for part in parts[:3]] == [True, True, False]
    assert isinstance(worker.carry_out(RemoveKeys(2, (), OWNER)), Done)
    assert not os.listdir(f"{tmp_path}/cache")
