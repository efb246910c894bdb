"""Files of a log that are lost, damaged, or refused by the disk when it is opened: what is derived is made anew, what
is not is asked for again by the next start.
"""

import errno

import pytest
from storage_support import SEGMENT, entries, fill, kill, new_shard, read_everything, rebuilt, reopened

from millstream.errors import Corruption
from millstream.storage.disk import read_file
from millstream.storage.segments.index import SegmentIndex
from sim.engine.local_storage import place_of, recover_locally


@pytest.mark.parametrize("how", ["missing", "damaged", "short", "unreadable"])
def test_an_index_is_rebuilt_with_one_line(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    shard = new_shard(seed=2)
    log = shard.open(1, segment_bytes=40_000)
    written = fill(shard, log, 120, 900)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    before = bytes(read_file(disk, SEGMENT + ".index"))
    what = "was missing, damaged or short"
    if how == "missing":
        disk.unlink(SEGMENT + ".index")
    elif how == "damaged":
        disk.flip(SEGMENT + ".index", len(before) // 2)
    elif how == "short":
        disk.open(SEGMENT + ".index").truncate(len(before) - 5)
    else:
        disk.fail = lambda kind, path: errno.EIO if kind == "read" and path == SEGMENT + ".index" else 0
        what = "could not be read (Input/output error) and is completed from the segment"
    report = recover_locally(disk)
    capfd.readouterr()
    shard, log = reopened(disk, report, segment_bytes=40_000)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"repaired: {SEGMENT}.index {what}" in lines[0]
    assert read_everything(shard, log) == b"".join(written)
    assert [one.base_offset for one in log.segments()] == [0, 41, 82]
    assert shard.stats.counter("recovery_repairs", kind="index_rebuilt").value == 1
    disk.fail = lambda kind, path: 0
    index = SegmentIndex.load(disk, SEGMENT + ".log", 0)
    assert index.whole
    assert entries(index) == rebuilt(disk, SEGMENT + ".log")


@pytest.mark.parametrize("how", ["damaged", "unreadable"])
def test_a_producer_snapshot_that_is_no_good_gives_way_to_the_one_before(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shard = new_shard()
    log = shard.open(1)
    log.owner.producer_snapshot = lambda: b"as of %d" % log.next_offset
    for _ in range(2):
        fill(shard, log, 100, 1000)
        shard.call(shard.storage.checkpoint)
    newest = f"{place_of(1).directory}/00000000000000000200.producers"
    disk = kill(shard)
    if how == "damaged":
        disk.flip(newest, 30)
        said = f"repaired: {newest} is ignored: "
    else:
        disk.fail = lambda kind, path: errno.EIO if kind == "read" and path == newest else 0
        said = f"repaired: {newest} could not be read (Input/output error) and is ignored"
    shard, log = reopened(disk, recover_locally(disk))
    assert log.files.snapshots.newest == (100, b"as of 100")
    assert said in capfd.readouterr().err
    assert shard.stats.counter("recovery_repairs", kind="producers_rebuilt").value == 1


@pytest.mark.parametrize("what", ["epochs", "00000000000000000000.log"])
def test_what_cannot_be_read_of_a_log_is_refused_until_it_can_be(what: str) -> None:
    shard = new_shard()
    written = fill(shard, shard.open(1), 5)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    report = recover_locally(disk)
    if what.endswith(".log"):
        disk.unlink(SEGMENT + ".index")
    path = f"{place_of(1).directory}/{what}"
    disk.fail = lambda kind, where: errno.EIO if kind == "read" and where == path else 0
    with pytest.raises(Corruption, match=f"{what} could not be read: Input/output error"):
        reopened(disk, report)
    disk.fail = lambda kind, where: 0
    shard, log = reopened(disk, report)
    assert read_everything(shard, log) == b"".join(written)
