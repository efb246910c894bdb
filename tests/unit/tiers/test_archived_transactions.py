"""The aborted transactions of an archived segment go to the store with it, and come back with what is read."""

import itertools
import uuid

import pytest

from millstream.format.manifest import ArchiveId
from millstream.objects import open_store
from millstream.storage.disk import SystemDisk
from millstream.tiers.messages import Read, Target, Upload
from millstream.tiers.reading import ArchiveReader
from millstream.tiers.uploading import Pace, upload
from millstream.wire.records import ABORT, COMMIT, build_batch, control_record

OWNER = ArchiveId(uuid.UUID(int=5), 0)
PRODUCER = 9
ABORTED = [(PRODUCER, 3, 5), (PRODUCER, 6, 20)]


def batch(offset, count=1, marker=None):
    records = [(None, b"x%d" % offset, (), 1_000)] * count if marker is None else [control_record(marker, 0, 1_000)]
    return build_batch(
        records,
        base_offset=offset,
        leader_epoch=1,
        producer_id=PRODUCER,
        producer_epoch=0,
        transactional=True,
        control=marker is not None,
    )


@pytest.fixture
def reader(tmp_path):
    """A reader of one archived segment with the offsets 0 to 7."""
    (tmp_path / "bucket").mkdir()
    store = open_store(f"file://{tmp_path}/bucket")
    log = batch(0, 2) + batch(2, marker=COMMIT) + batch(3, 2) + batch(5, marker=ABORT) + batch(6, 2)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(log)
    command = Upload(1, OWNER, str(path), 0, 0, 8, len(log), 1, ABORTED, 0)
    segment = upload(store, SystemDisk(), command, Pace(1e12))
    return ArchiveReader(store), segment


@pytest.mark.parametrize(
    ("offset", "end", "expected"),
    [(0, 3, []), (0, 4, ABORTED[:1]), (5, 6, ABORTED[:1]), (6, 8, ABORTED[1:]), (0, 8, ABORTED)],
)
def test_a_read_brings_the_aborted_transactions_among_its_batches(reader, offset, end, expected):
    archive, segment = reader
    numbers = itertools.count(1)
    command = Read(next(numbers), OWNER, Target.of(segment), offset, end, 1 << 20, True, [0, 4096])
    found = archive.read(command, [memoryview(bytearray(4096))])
    assert found.size_bytes > 0
    assert list(found.aborted) == expected
