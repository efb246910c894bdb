"""Data directories that earlier versions left are opened, replayed and go on.

``data/before-replication-crashed`` and ``…-stopped`` were written by the last version without replication: three logs
with several leader epochs, one of them trimmed, one cut in its end; the power failed, or the broker stopped in order.
The files beside say what a reader of them has to find.
"""

import hashlib
import io
import json
import lzma
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from millstream.format.epochs import RaftBase, StoredVote
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, plain_batch, recover_locally

DATA = Path(__file__).parent / "data"


def disk_of(name: str) -> SimDisk:
    """A disk with the files of an archive, all of them durable."""
    disk = SimDisk(random.Random(1))
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress((DATA / f"{name}.tar.xz").read_bytes()))) as archive:
        for member in archive.getmembers():
            path = ""
            for part in f"/{member.name}".split("/")[1:-1]:
                path += f"/{part}"
                disk.make_directory(path)
            content = archive.extractfile(member)
            assert content is not None
            disk.open(f"/{member.name}", create=True).pwritev([content.read()], 0)
    disk.sync_all("/")
    return disk


def read_log(shard: LocalShard, log: Any) -> bytes:
    """All batches from the log's start on."""
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.next_offset:
        batches = log.read(offset, log.next_offset, 1 << 20, True)
        if batches is None:
            batches = shard.call(log.read_cold, offset, log.next_offset, 1 << 20, True)
        data = bytes(batches)
        batches.release()
        found.append(data)
        at = 0
        while at < len(data):
            base, length, delta = (
                int.from_bytes(data[at : at + 8], "big"),
                int.from_bytes(data[at + 8 : at + 12], "big"),
                int.from_bytes(data[at + 23 : at + 27], "big"),
            )
            offset = base + delta + 1
            at += 12 + length
    return b"".join(found)


def start(disk: SimDisk) -> LocalShard:
    report = recover_locally(disk)
    assert not report.faults
    return LocalShard(disk, random.Random(2), clean=report.clean)


def facts(shard: LocalShard, log: Any) -> dict[str, Any]:
    return {
        "start": log.start_offset,
        "next": log.next_offset,
        "epochs": [list(one) for one in log.leader_epochs],
        "sha256": hashlib.sha256(read_log(shard, log)).hexdigest(),
    }


@pytest.mark.parametrize("how", ["crashed", "stopped"])
def test_a_data_directory_from_before_replication_opens_and_goes_on(how: str) -> None:
    disk = disk_of(f"before-replication-{how}")
    expected = json.loads((DATA / f"before-replication-{how}.json").read_text())
    for one in expected.values():
        del one["vote"]  # opaque bytes that only a test wrote
    shard = start(disk)
    logs = {number: shard.open(int(number)) for number in expected}
    assert {number: facts(shard, log) for number, log in logs.items()} == expected
    for log in logs.values():
        assert (log.raft.vote, log.raft.controls.base, log.raft.controls.entries) == (StoredVote(), RaftBase(), [])
        assert log.next_raft_position == log.next_offset, "without control entries a position is an offset"

    log = logs["1"]
    end = log.next_offset
    shard.call(log.save_vote, StoredVote(6, 1))
    assert log.append_control(6, b"term start").position == end
    data = plain_batch(0, 2, b"new", 1000)
    log.append([memoryview(data)], len(data), end, end + 1, 6, 1000)
    shard.call(shard.storage.wal.when_durable)
    disk.crash(torn=False)
    shard = start(disk)
    log = shard.open(1)
    assert (log.raft.vote, log.next_offset, log.next_raft_position) == (StoredVote(6, 1), end + 2, end + 3)
    assert [one.payload for one in log.raft.controls.entries] == [b"term start"]
    assert log.leader_epochs[-1] == (6, end)
