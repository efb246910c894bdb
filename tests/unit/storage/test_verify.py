"""What a check of the files finds: nothing in good ones, and each kind of damage where it is."""

import errno
import random

import pytest
from storage_support import append, fill, new_shard, settle

from millstream.format.index import encode_block, scan_index
from millstream.format.names import TOPIC_FILE, partition_directory
from millstream.storage.disk import read_file, replace_file
from millstream.storage.verification.log import CORRUPT, MENDED, NO_END, Progress, find_logs, verify_log
from millstream.storage.verification.wal import verify_wal, wal_batches, wal_bytes, wal_offsets

DATA = "/data"
SEGMENT = "00000000000000000000"


@pytest.fixture
def shard():
    return new_shard()


def written(shard, *, batches=300, segment_bytes=64 * 1024, checkpoint=True):
    """A log of several segments, everything in the files."""
    log = shard.open(1, segment_bytes=segment_bytes)
    fill(shard, log, batches)
    settle(shard)
    if checkpoint:
        shard.call(shard.storage.checkpoint)
    return log


def check(shard, **options):
    progress = Progress()
    for one in find_logs(shard.disk, DATA):
        verify_log(shard.disk, one, progress, **options)
    if not options:
        verify_wal(shard.disk, DATA, progress, lambda group: f"log {group}")
    return progress


def flip(shard, path, position):
    shard.disk.flip(path, position)


def damage(progress):
    return [(one.severity, one.offset, one.file.rpartition("/")[2]) for one in progress.findings]


def test_good_files_are_found_good_and_counted(shard):
    log = written(shard)
    progress = check(shard)
    assert progress.findings == []
    assert progress.tally.batches == progress.tally.records == 300
    assert progress.tally.segments == len(log.segments()) > 2
    assert progress.tally.bytes == log.size_bytes + wal_bytes(shard.disk, DATA)


def test_progress_adds_up_to_what_was_announced(shard):
    written(shard)
    steps = []
    progress = Progress(steps.append)
    logs = find_logs(shard.disk, DATA)
    for one in logs:
        verify_log(shard.disk, one, progress)
    assert sum(steps) == sum(one.size_bytes for one in logs)


def test_what_a_power_failure_took_of_a_closed_segment_is_mended_if_the_write_ahead_log_has_it(shard):
    log = written(shard, batches=300, checkpoint=False)
    file = shard.disk.open(f"{log.directory}/{SEGMENT}.log")
    file.truncate(3 * 577)
    waiting = wal_offsets(shard.disk, DATA)[1]
    assert waiting == [(0, 300)]
    assert {one.severity for one in check(shard, waiting=waiting).findings} == {MENDED}
    assert check(shard, waiting=[(5, 300)]).corrupt, "offsets 3 and 4 are nowhere"


def test_what_an_index_says_of_batches_that_the_next_start_cuts_is_no_damage(shard):
    """The end of a log was cut, and a power failure has brought the index back that knew more."""
    log = written(shard)
    path = log.segments()[-1].path
    base, index = log.segments()[-1].base_offset, f"{path.removesuffix('.log')}.index"
    before = read_file(shard.disk, index)
    shard.call(log.truncate_suffix, base + 5)
    settle(shard)
    append(log, 1, 10)
    settle(shard)
    replace_file(shard.disk, index, before)
    waiting = wal_offsets(shard.disk, DATA)[1]
    assert waiting == [(base + 5, base + 6), (base + 5, NO_END)]
    assert not check(shard, waiting=waiting).corrupt
    assert check(shard).corrupt, "without the note of the cut"
    file = shard.disk.open(path)
    file.truncate(file.size() // 2)
    found = [one for one in check(shard, waiting=waiting).findings if one.severity == CORRUPT]
    assert [one.offset for one in found if one.file == path] and found[0].offset < base + 5


def test_a_topic_whose_name_a_power_failure_took_is_named_by_its_id(shard):
    log = written(shard)
    topic_id = log.directory.split("/")[-2]
    shard.disk.open(f"{DATA}/topics/{topic_id}/{TOPIC_FILE}").truncate(0)
    (found,) = find_logs(shard.disk, DATA)
    assert (found.name, found.topic_id, found.partition) == (f"{topic_id}/0", topic_id, 0)


def test_a_flipped_byte_in_a_batch_is_reported_with_its_offset(shard):
    log = written(shard)
    flip(shard, f"{log.directory}/{SEGMENT}.log", 3 * 577 + 300)
    size = log.segments()[0].bytes // log.segments()[0].end_offset
    progress = check(shard)
    assert damage(progress) == [(CORRUPT, (3 * 577 + 300) // size, f"{SEGMENT}.log")]
    assert progress.tally.batches == 300, "the rest is looked at all the same"


def test_a_damaged_header_hides_no_more_than_up_to_the_next_index_entry(shard):
    log = written(shard)
    size = log.segments()[0].bytes // log.segments()[0].end_offset
    flip(shard, f"{log.directory}/{SEGMENT}.log", 5 * size + 16)  # the magic of batch 5
    progress = check(shard)
    assert [(one.severity, one.offset) for one in progress.findings] == [(CORRUPT, 5)]
    assert "readable from offset" in progress.findings[0].what
    assert 300 - 32 * 1024 // size - 6 <= progress.tally.batches < 300


def test_a_segment_that_lost_its_end_is_corrupt(shard):
    log = written(shard)
    file = shard.disk.open(f"{log.directory}/{SEGMENT}.log")
    file.truncate(file.size() - 100)
    kinds = {severity for severity, _, _ in damage(check(shard))}
    assert kinds == {CORRUPT}


@pytest.mark.parametrize("lost", [30, 100, 561, 600])
def test_a_segment_that_lost_its_end_is_corrupt_while_a_broker_runs(shard, lost):
    log = written(shard)
    file = shard.disk.open(f"{log.directory}/{SEGMENT}.log")
    file.truncate(file.size() - lost)
    kinds = {severity for severity, _, _ in damage(check(shard, running=True))}
    assert kinds == {CORRUPT}


def test_bytes_that_no_checkpoint_covers_are_mended_by_the_next_start(shard):
    log = written(shard)
    path = f"{log.directory}/{log.segments()[-1].base_offset:020}.log"
    file = shard.disk.open(path)
    file.pwritev([b"torn" * 40], file.size())
    assert [severity for severity, _, _ in damage(check(shard))] == [MENDED]
    assert check(shard, running=True).findings == [], "a running broker may be writing there"


def test_a_missing_segment_in_the_middle_is_corrupt(shard):
    log = written(shard)
    second, third = log.segments()[1:3]
    shard.disk.unlink(f"{log.directory}/{second.base_offset:020}.log")
    shard.disk.unlink(f"{log.directory}/{second.base_offset:020}.index")
    findings = check(shard).findings
    assert [one.severity for one in findings] == [CORRUPT]
    assert findings[0].what == f"offsets {second.base_offset} to {third.base_offset - 1} are in no segment"


def test_an_index_that_is_gone_or_torn_is_mended_and_one_that_lies_is_corrupt(shard):
    log = written(shard)
    path = f"{log.directory}/{SEGMENT}.index"
    whole = bytes(read_file(shard.disk, path))
    scan = scan_index(whole, 0)
    assert scan.summary is not None
    replace_file(shard.disk, path, whole[:-3])
    assert damage(check(shard))[0] == (MENDED, -1, f"{SEGMENT}.index")
    scan.positions[1] += 1
    replace_file(shard.disk, path, encode_block(scan.summary, scan.offsets, scan.positions, scan.timestamps))
    assert {one[0] for one in damage(check(shard))} == {CORRUPT}
    shard.disk.unlink(path)
    assert damage(check(shard)) == [(MENDED, -1, f"{SEGMENT}.index")]


def test_what_the_disk_cannot_read_is_told_and_the_rest_is_looked_at(shard):
    log = written(shard)
    log.owner.producer_snapshot = lambda: b"producers"
    fill(shard, log, 150)
    shard.call(shard.storage.checkpoint)
    names = [name for name in shard.disk.list(log.directory) if name.endswith((".log", ".index"))]
    snapshot = next(name for name in shard.disk.list(log.directory) if name.endswith(".producers"))
    for name, severity in [
        *((name, CORRUPT if name.endswith(".log") else MENDED) for name in names[:4]),
        ("epochs", CORRUPT),
        (snapshot, MENDED),
    ]:
        path = f"{log.directory}/{name}"
        shard.disk.fail = lambda kind, where, path=path: errno.EIO if kind == "read" and where == path else 0
        (found,) = check(shard).findings
        assert (found.severity, found.file) == (severity, path)
        assert "could not be read: Input/output error" in found.what
    shard.disk.fail = lambda kind, where: 0
    assert check(shard).findings == []


def test_a_segment_is_looked_at_up_to_where_it_cannot_be_read(shard):
    log = shard.open(1, segment_bytes=1 << 30)
    fill(shard, log, 1200, 4000)
    shard.call(shard.storage.checkpoint)
    reads = []

    def fail(kind, path):
        if kind != "read" or not path.endswith(".log"):
            return 0
        reads.append(path)
        return errno.EIO if len(reads) > 1 else 0

    shard.disk.fail = fail
    (found,) = check(shard).findings
    assert len(reads) == 2
    size = log.segments()[0].bytes // 1200
    assert (found.severity, found.position) == (CORRUPT, found.offset * size)
    assert 4 << 20 >= found.position > (4 << 20) - 2 * size


def test_a_write_ahead_log_that_cannot_be_read_is_told(shard):
    written(shard, checkpoint=False)
    shard.disk.fail = lambda kind, path: errno.EIO if kind == "read" and path.endswith(".wal") else 0
    progress = Progress()
    verify_wal(shard.disk, DATA, progress, lambda group: f"log {group}")
    (found,) = progress.findings
    assert (found.severity, found.log) == (CORRUPT, "write-ahead log 0")
    assert "could not be read: Input/output error" in found.what


@pytest.mark.parametrize(("off_ms", "is_right"), [(-1, False), (1, True)])
def test_the_largest_time_of_an_index_is_an_upper_bound(shard, off_ms, is_right):
    """Look-ups by time pass over a segment whose largest time is too small; a larger one is of a tail that was cut."""
    import msgspec

    log = written(shard)
    path = f"{log.directory}/{SEGMENT}.index"
    scan = scan_index(bytes(read_file(shard.disk, path)), 0)
    assert scan.summary is not None
    lie = msgspec.structs.replace(scan.summary, max_timestamp=scan.summary.max_timestamp + off_ms)
    replace_file(shard.disk, path, encode_block(lie, scan.offsets, scan.positions, scan.timestamps))
    assert damage(check(shard)) == ([] if is_right else [(CORRUPT, 0, f"{SEGMENT}.index")])


def test_small_files_that_do_not_verify_are_named(shard):
    log = written(shard)
    flip(shard, f"{log.directory}/epochs", 9)
    findings = check(shard).findings
    assert [(one.severity, one.file) for one in findings] == [(CORRUPT, f"{log.directory}/epochs")]


def test_a_leader_epoch_that_nobody_wrote_is_found_though_no_checksum_covers_it(shard):
    log = shard.open(1)
    sizes = [len(append(log, 1, 500, epoch=epoch)) for epoch in (3, 3, 3, 5, 5, 8)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    assert check(shard).findings == []
    path = f"{log.directory}/{SEGMENT}.log"
    for offset in range(6):
        for byte in (13, 15):  # larger than every other epoch, or one in between
            at = sum(sizes[:offset]) + byte
            whole = bytes(read_file(shard.disk, path))[at : at + 1]
            flip(shard, path, at)
            found = damage(check(shard, settled=True))
            assert found == [(CORRUPT, offset, f"{SEGMENT}.log")]
            # After a crash the last ones may be newer than what the last checkpoint knew.
            assert check(shard, running=True).findings or offset == 5
            shard.disk.damage(path, at, whole)


def test_a_fenced_log_says_why(shard):
    log = written(shard)
    replace_file(shard.disk, f"{log.directory}/fault", b"offset 7 cannot be read\n")
    assert check(shard).findings[0].what == "the log is fenced: offset 7 cannot be read"


def test_a_record_of_the_write_ahead_log_that_was_durable_and_is_damaged_is_named_by_its_log(shard):
    log = shard.open(1)
    for _ in range(4):
        append(log, 1, 500)
        settle(shard)
    good = check(shard)
    assert not good.corrupt
    assert good.tally.frames >= 4
    path = f"{DATA}/wal/0/00000000.wal"
    data = bytes(read_file(shard.disk, path))
    payload = random.Random(1).randbytes(500)  # of the batch with offset 1
    flip(shard, path, data.index(payload[:64]) + 5)
    found = [one for one in check(shard).findings if one.severity == CORRUPT]
    assert [(one.log, one.offset) for one in found] == [("log 1", 1)]


def test_batches_that_only_the_write_ahead_log_holds_can_be_read_but_for_damaged_ones(shard):
    log, other = shard.open(1), shard.open(2)
    written = []
    for _ in range(4):
        written.append(append(log, 1, 500))
        append(other, 1, 500)
        settle(shard)
    assert list(wal_batches(shard.disk, DATA, 1)) == written
    path = f"{DATA}/wal/0/00000000.wal"
    flip(shard, path, bytes(read_file(shard.disk, path)).index(written[2]) + 100)
    assert list(wal_batches(shard.disk, DATA, 1)) == written[:2] + written[3:]
    shard.call(shard.storage.checkpoint)
    assert list(wal_batches(shard.disk, DATA, 1)) == []


def test_a_log_directory_is_named_by_its_topic(shard):
    log = written(shard)
    found = {one.directory: one.name for one in find_logs(shard.disk, DATA)}
    assert log.directory in found
    assert partition_directory(DATA, b"\0" * 16, 0) not in found
