"""Reads from segment files: checked, bounded, whole batches; damage is told and does not spread."""

from types import SimpleNamespace

import pytest
from storage_support import append, fill, new_shard, settle

from millstream.errors import Corruption, Rejected, Retriable
from millstream.iobuf import ArenaFull, MemoryClass
from millstream.model.error_code import ErrorCode
from millstream.storage.log.cold_reads import ColdRequest
from millstream.storage.messages.commands import READS_LANE, SEGMENTS_LANE
from sim.engine.local_storage import MIB, place_of

BIG = {"wal_bytes": 8 * MIB, "wal_file_bytes": MIB}


def cold(shard, log, offset, max_bytes=1 << 20, end=None, minimum_one=True):
    """One cold read; the bytes, or the error."""
    found = shard.call(log.read_cold, offset, log.next_offset if end is None else end, max_bytes, minimum_one)
    if isinstance(found, Exception):
        return found
    data = bytes(found)
    found.release()
    return data


@pytest.fixture
def shard():
    return new_shard(settings=BIG)


@pytest.mark.parametrize("size", [200, 3000, 200_000])
def test_cold_reads_return_what_a_warm_one_would(shard, size: int) -> None:
    log = shard.open(1)
    written = [append(log, 2, size) for _ in range(3)]
    settle(shard)
    written += [append(log, 3, size // 3 + n) for n in range(5)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    offsets = [0, 2, 4, 6, 9, 12, 15, 18, 21]
    for place in range(8):
        for offset in range(offsets[place], offsets[place + 1]):
            for limit in (0, size, 2 * size + 200, 1 << 22):
                expected, room = b"", limit
                for data in written[place:]:
                    if len(data) > room and expected:
                        break
                    expected += data
                    room -= len(data)
                assert cold(shard, log, offset, limit) == expected, (offset, limit)
    assert cold(shard, log, 3, 10, minimum_one=False) == b""
    assert cold(shard, log, 0, end=5) == b"".join(written[:2])


def test_a_read_may_end_anywhere_in_the_next_batch(shard) -> None:
    log = shard.open(1)
    written = [append(log, 1, 300 + 7 * n % 97) for n in range(150)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    for offset in range(150):
        for limit in (1, 500, 1000, 2000, 4000, 8000):
            data = cold(shard, log, offset, limit)
            assert isinstance(data, bytes), data
            assert data, (offset, limit)
            assert b"".join(written[offset:]).startswith(data)


def test_a_reader_goes_on_where_it_stopped_over_all_segments(shard) -> None:
    log = shard.open(1, segment_bytes=20_000)
    written = fill(shard, log, 200, 900)
    shard.call(shard.storage.checkpoint)
    offset, data = 0, b""
    while offset < 200:
        part = cold(shard, log, offset, 5000)
        assert 0 < len(part) <= 5000
        data += part
        offset += len(part) // 961
    assert data == b"".join(written)


def test_a_rotten_batch_is_an_error_for_its_reader_and_the_rest_is_served(
    shard, capfd: pytest.CaptureFixture[str]
) -> None:
    log, other = shard.open(1), shard.open(2)
    written = fill(shard, log, 20, 900)
    expected = fill(shard, other, 5, 900)
    shard.call(shard.storage.checkpoint)
    path = f"{place_of(1).directory}/00000000000000000000.log"
    shard.disk.flip(path, 961 * 7 + 300)
    assert cold(shard, log, 0) == b"".join(written[:7])
    failure = cold(shard, log, 7)
    assert isinstance(failure, Corruption)
    assert path in failure.message
    assert f"byte {961 * 7}, offset 7" in failure.message
    assert cold(shard, log, 8) == b"".join(written[8:])
    assert cold(shard, other, 0) == b"".join(expected)
    assert shard.stats.counter("storage_faults", kind="corruption").value == 1
    assert "topic1/0] corrupt: " in capfd.readouterr().err


def test_a_rotten_header_is_found_as_well(shard) -> None:
    log = shard.open(1)
    fill(shard, log, 20, 900)
    shard.call(shard.storage.checkpoint)
    shard.disk.flip(f"{place_of(1).directory}/00000000000000000000.log", 961 * 4 + 16)  # magic
    assert isinstance(cold(shard, log, 4), Corruption)


@pytest.mark.parametrize("before", [False, True], ids=["", "by a reader that was there before"])
@pytest.mark.parametrize("lost", [1, 300, 550, 561, 571])
def test_a_segment_that_lost_its_end_is_a_fault_and_neither_an_empty_answer_nor_asked_for_again_and_again(
    shard, lost: int, before: bool
) -> None:
    log = shard.open(1)
    written = fill(shard, log, 20, 500)
    shard.call(shard.storage.checkpoint)
    if before:
        assert cold(shard, log, 17, 1) == written[17]
        assert cold(shard, log, 18, 1) == written[18]
    path, size = log.segments()[0].path, log.size_bytes - lost
    shard.disk.open(path).truncate(size)
    whole = size // len(written[0])
    assert cold(shard, log, 0) == b"".join(written[:whole])
    failures: list[object] = []
    log.read_cold(whole, log.next_offset, 1 << 20, True, failures.append)
    for _ in range(100):
        shard.step()
    assert len(failures) == 1
    assert isinstance(failures[0], Corruption)
    assert path in failures[0].message


def test_a_segment_that_is_missing_is_a_fault_and_not_taken_for_deleted(shard) -> None:
    log = shard.open(1, segment_bytes=2000)
    written = fill(shard, log, 9)
    shard.call(shard.storage.checkpoint)
    path = log.segments()[0].path
    shard.disk.unlink(path)
    shard.processes.file_worker.files.files.close()
    for failure in (cold(shard, log, 0), shard.call(log.offset_for_timestamp, 500, 9)):
        assert isinstance(failure, Corruption)
        assert f"{path} is missing" in failure.message
    assert cold(shard, log, 3) == b"".join(written[3:6])


def test_who_looks_for_something_in_a_log_that_is_deleted_is_told_so(shard) -> None:
    log = shard.open(1, segment_bytes=600)
    fill(shard, log, 400, 500)
    shard.call(shard.storage.checkpoint)
    append(log, 1, 10)
    settle(shard)
    answers: list[object] = []
    log.offset_for_timestamp(500, log.next_offset, answers.append)
    log.max_timestamp(log.next_offset, answers.append)
    shard.storage.delete_log(log, lambda: None)
    log.read_cold(5, log.next_offset, 1000, True, answers.append)
    shard.run(lambda: len(answers) == 3)
    assert [getattr(one, "code", one) for one in answers] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3


@pytest.mark.parametrize("byte", [3, 7])
def test_a_batch_that_claims_another_offset_is_a_fault_and_not_an_endless_wait(shard, byte: int) -> None:
    log = shard.open(1)
    written = [append(log, 1, 500, timestamp=1000 + n) for n in range(30)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    size = len(written[0])
    shard.disk.flip(f"{log.directory}/{0:020}.log", 10 * size + byte)
    assert cold(shard, log, 5) == b"".join(written[5:10])
    assert isinstance(cold(shard, log, 10), Corruption)


@pytest.mark.parametrize("offset", [10, 29])
def test_a_batch_that_claims_to_reach_behind_the_end_is_a_fault_and_not_an_empty_answer(shard, offset: int) -> None:
    log = shard.open(1)
    written = [append(log, 1, 500) for _ in range(30)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.disk.flip(f"{log.directory}/{0:020}.log", offset * len(written[0]) + 23)  # the last offset delta
    assert cold(shard, log, 0) == b"".join(written[:offset])
    failure = cold(shard, log, offset)
    assert isinstance(failure, Corruption)
    assert f"offset {offset}, does not match its checksum" in failure.message


def test_a_leader_epoch_that_nobody_wrote_is_a_fault_though_no_checksum_covers_it(shard) -> None:
    log = shard.open(1)
    written = [append(log, 1, 500, epoch=epoch) for epoch in (3, 3, 3, 5, 5, 8)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    path, size = f"{log.directory}/{0:020}.log", len(written[0])
    assert cold(shard, log, 0) == b"".join(written)
    for offset in (1, 3, 5):
        shard.disk.flip(path, offset * size + 15)
        assert cold(shard, log, 0) == b"".join(written[:offset])
        failure = cold(shard, log, offset)
        assert isinstance(failure, Corruption)
        assert f"offset {offset}, has leader epoch" in failure.message
        assert cold(shard, log, offset + 1) == b"".join(written[offset + 1 :])
        shard.disk.damage(path, offset * size, written[offset])
    assert cold(shard, log, 0) == b"".join(written)


def test_an_offset_before_the_start_is_refused(shard) -> None:
    log = shard.open(1, segment_bytes=5000)
    fill(shard, log, 40, 900)
    shard.call(shard.storage.checkpoint)
    shard.call(log.trim_prefix, 20)
    assert isinstance(cold(shard, log, 3), Rejected)
    assert cold(shard, log, 20)


def test_a_read_waits_for_memory_and_gives_up_in_the_end(shard) -> None:
    log = shard.open(1)
    written = fill(shard, log, 20, 900)
    shard.call(shard.storage.checkpoint)
    hoard = []
    with pytest.raises(Exception, match="no free fragment"):
        while True:
            hoard.append(shard.arena.allocate(131072))
    small = []
    with pytest.raises(Exception, match="no free fragment"):
        while True:
            small.append(shard.arena.allocate(19_000))
    answers: list = []
    log.read_cold(0, 20, 10_000, True, answers.append)
    shard.run(lambda: bool(answers), limit_us=50_000)
    assert not answers
    hoard.pop().release()
    shard.run(lambda: bool(answers))
    assert bytes(answers[0]) == b"".join(written[:10])
    answers[0].release()
    hoard.append(shard.arena.allocate(131072))
    failure = shard.call(log.read_cold, 0, 20, 10_000, True)
    assert isinstance(failure, Retriable)
    for one in hoard + small:
        one.release()


def test_fragments_that_were_not_filled_go_back(shard) -> None:
    log = shard.open(1)
    fill(shard, log, 20, 900)
    shard.call(shard.storage.checkpoint)
    before = shard.arena.live_fragments
    found = shard.call(log.read_cold, 0, 20, 1 << 20, True)
    assert len(found) == 20 * 961
    found.release()
    assert shard.arena.live_fragments == before
    assert shard.arena.reserved_bytes(MemoryClass.FETCH) == 0


@pytest.mark.parametrize("place", [35 + 7, 61 + 3], ids=["header", "records"])
def test_behind_a_damaged_batch_no_record_is_late_enough(shard, place: int) -> None:
    log = shard.open(1, index_interval_bytes=4096)
    written = [append(log, 1, 900, timestamp=1000 * n) for n in range(1, 41)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    path, damaged = log.segments()[0].path, 7
    position = sum(map(len, written[:damaged]))
    shard.disk.flip(path, position + place)
    end = log.next_offset
    for timestamp in (8000, 8500, 7500):  # the damaged one has 8000, or had: what follows may not be the first
        answer = shard.call(log.offset_for_timestamp, timestamp, end)
        assert isinstance(answer, Corruption), timestamp
        assert f"{path}: the batch at byte {position}, offset {damaged}, does not match" in answer.message
    for timestamp in (500, 3500, 20_500, 39_500):  # another stretch of the index, or before it
        assert shard.call(log.offset_for_timestamp, timestamp, end) == (timestamp // 1000, timestamp + 500, 0)
    assert shard.call(log.offset_for_timestamp, 7500, damaged) is None
    assert shard.call(log.max_timestamp, end) == (39, 40_000, 0)


def test_the_leader_epoch_of_a_record_found_by_time_is_the_one_that_was_written(shard) -> None:
    log = shard.open(1)
    written = [append(log, 1, 100, timestamp=1000 * n, epoch=n // 4) for n in range(1, 9)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.disk.flip(log.segments()[0].path, sum(map(len, written[:5])) + 15)
    assert shard.call(log.offset_for_timestamp, 5500, log.next_offset) == (5, 6000, 1)


def test_timestamps_find_the_first_record_late_enough() -> None:
    from millstream.wire.records import build_batch

    shard = new_shard(settings=BIG)
    log = shard.open(1, segment_bytes=4000)
    stamps = [[10, 30, 20], [5, 6, 7], [40, 35, 90], [90, 90, 41], [1, 2, 3]] * 8
    records: list[tuple[int, int]] = []
    for n, batch_stamps in enumerate(stamps):
        base = log.next_offset
        codec = n % 5
        data = build_batch([(None, b"v" * 90, (), s + n * 100) for s in batch_stamps], compression=codec)
        log.append((memoryview(data),), len(data), base, base + 2, 0, max(batch_stamps) + n * 100)
        records += [(base + i, s + n * 100) for i, s in enumerate(batch_stamps)]
    settle(shard)
    end = log.next_offset
    for timestamp in [0, 6, 31, 91, 106, 190, 191, 1490, 3000, 3990, 3991, 99_999]:
        expected = next(((o, s, 0) for o, s in records if s >= timestamp), None)
        assert shard.call(log.offset_for_timestamp, timestamp, end) == expected, timestamp
    assert shard.call(log.offset_for_timestamp, 3900, 100) is None
    largest = max(s for _, s in records)
    assert shard.call(log.max_timestamp, end) == (next(o for o, s in records if s == largest), largest, 0)
    below = [one for one in records if one[0] < 60]
    largest = max(s for _, s in below)
    assert shard.call(log.max_timestamp, 60) == (next(o for o, s in below if s == largest), largest, 0)


@pytest.mark.parametrize(("start", "found"), [(0, (0, 9000)), (1, (4, 300)), (2, (4, 300))])
def test_the_largest_timestamp_is_found_though_the_log_starts_behind_a_larger_one(
    start: int, found: tuple[int, int]
) -> None:
    from millstream.wire.records import build_batch

    shard = new_shard()
    log = shard.open(1)
    for stamps in ([9000, 100, 200], [200, 300]):
        data = build_batch([(None, b"v", (), stamp) for stamp in stamps])
        base = log.next_offset
        log.append((memoryview(data),), len(data), base, base + len(stamps) - 1, 0, max(stamps))
    settle(shard)
    shard.call(log.trim_prefix, start)
    assert shard.call(log.max_timestamp, 5) == (*found, 0)
    if start:
        assert shard.call(log.max_timestamp, 3) == (2, 200, 0)


@pytest.mark.parametrize("stamps", [[5, 9, 9, 7, 3], [9, 1, 1, 1, 9], [1, 2, 3, 4, 5]])
def test_the_largest_timestamp_of_a_log_that_grows_is_found_without_reading_all_of_it(stamps: list[int]) -> None:
    from millstream.wire.records import build_batch

    shard = new_shard(settings=BIG)
    log = shard.open(1, segment_bytes=1000)
    for stamp in [1] * 20 + stamps + [99]:  # the last one is not committed yet
        data = build_batch([(None, bytes(700), (), stamp)])
        log.append((memoryview(data),), len(data), log.next_offset, log.next_offset, 0, stamp)
    settle(shard)
    asked: list[str] = []
    find = shard.processes.file_worker.reader.find
    shard.processes.file_worker.reader.find = lambda command: asked.append(command.path) or find(command)
    assert shard.call(log.max_timestamp, 25) == (20 + stamps.index(max(stamps)), max(stamps), 0)
    assert len(asked) <= 4


def test_what_is_in_a_segment_is_found_by_its_timestamp_though_the_disk_takes_no_more() -> None:
    from millstream.wire.records import build_batch

    shard = new_shard()
    log = shard.open(1)

    def write(stamp: int) -> None:
        data = build_batch([(None, b"v", (), stamp)])
        log.append((memoryview(data),), len(data), log.next_offset, log.next_offset, 0, stamp)
        settle(shard)

    write(1000)
    write(2000)
    shard.call(shard.storage.checkpoint)
    shard.processes.hang(SEGMENTS_LANE, 60_000_000)
    write(3000)
    begun = shard.reactor.now_us()
    assert shard.call(log.offset_for_timestamp, 1500, 3) == (1, 2000, 0)
    assert shard.reactor.now_us() - begun < 60_000_000
    assert shard.call(log.offset_for_timestamp, 2500, 3) == (2, 3000, 0)


def test_what_is_in_many_segments_that_are_not_written_yet_is_found_by_its_timestamp() -> None:
    shard = new_shard(settings=BIG)
    log = shard.open(1, segment_bytes=600)
    shard.processes.hang(SEGMENTS_LANE, 60_000_000)
    fill(shard, log, 400, 500, timestamp=1000)
    assert log.ends.written_position == 0
    assert shard.call(log.offset_for_timestamp, 500, 400)[:2] == (0, 1000)


def test_what_is_visible_before_it_is_durable_is_found_by_its_timestamp() -> None:
    from millstream.wire.records import build_batch

    shard = new_shard()
    log = shard.open(1)
    for stamp in (1000, 2000):
        data = build_batch([(None, b"v", (), stamp)])
        log.append((memoryview(data),), len(data), log.next_offset, log.next_offset, 0, stamp)
    assert log.durable_offset == 0
    assert shard.call(log.offset_for_timestamp, 1500, 2) == (1, 2000, 0)


def test_the_largest_of_records_without_timestamps_is_that_of_the_first() -> None:
    shard = new_shard()
    log = shard.open(1)
    assert shard.call(log.max_timestamp, 1) is None
    append(log, 1, 10, timestamp=-1)
    settle(shard)
    offset, timestamp, _ = shard.call(log.max_timestamp, 1)
    assert (offset, timestamp) == (0, -1)
    assert shard.call(log.offset_for_timestamp, 5, 1) is None


def test_a_batch_that_is_written_in_part_is_no_damage_to_who_looks_for_a_time(
    shard, capfd: pytest.CaptureFixture[str]
) -> None:
    log = shard.open(1)
    for n in range(3):
        append(log, 1, 10_000, timestamp=1000 + n)
        settle(shard)
    shard.run(lambda: not log.behind.under_way)
    assert 20_122 < log.ends.written_position < log.ends.durable_position
    assert shard.call(log.offset_for_timestamp, 1001, 3) == (1, 1001, 0)
    assert log.ends.written_position < log.ends.durable_position
    assert shard.call(log.offset_for_timestamp, 1002, 3) == (2, 1002, 0)
    assert shard.call(log.max_timestamp, 3) == (2, 1002, 0)
    assert shard.stats.counter("storage_faults", kind="corruption").value == 0
    assert "corrupt" not in capfd.readouterr().err


def test_a_later_segment_that_is_written_meanwhile_is_not_searched_before_the_rest_of_an_earlier_one(shard) -> None:
    log = shard.open(1, segment_bytes=1000)
    append(log, 1, 300, timestamp=1000)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.processes.hang(SEGMENTS_LANE, 1_000_000)
    append(log, 1, 300, timestamp=3000)
    append(log, 1, 900, timestamp=4000)
    settle(shard)
    assert log.ends.written_position < log.ends.durable_position
    assert len(log.files.segments) == 2
    shard.processes.hang(READS_LANE, 2_000_000)
    assert shard.call(log.offset_for_timestamp, 2500, 3) == (1, 3000, 0)


def test_the_head_of_a_batch_stays_in_the_cache_until_the_batch_is_written_whole(shard) -> None:
    log = shard.open(1)
    written: list[bytes] = []
    for _ in range(3):
        written.append(append(log, 1, 10_000))
        settle(shard)
    shard.run(lambda: not log.behind.under_way)
    assert 20_122 < log.ends.written_position < log.ends.durable_position
    shard.arena.on_pressure(1 << 20)
    found = log.read(2, 3, 1 << 20, True)
    assert found is not None
    assert bytes(found) == written[2]
    found.release()
    shard.run(lambda: log.ends.written_position == log.ends.durable_position)
    shard.arena.on_pressure(1 << 20)
    assert log.read(2, 3, 1 << 20, True) is None
    assert cold(shard, log, 2) == written[2]


def test_after_a_stop_a_read_that_needs_more_memory_waits_for_some_or_comes_later_is_refused(shard) -> None:
    """The worker may have ended by then: it would neither read anything nor give the memory back."""
    log = shard.open(1)
    written = [append(log, 1, 5000) for _ in range(2)]
    settle(shard)
    shard.call(shard.storage.checkpoint)
    reads = shard.storage.reads.cold
    held = shard.arena.in_use_bytes
    answers: dict[str, list] = {"fits": [], "grows": [], "waits": [], "late": []}
    reads.read(log, ColdRequest(0, 2, 1 << 20), answers["fits"].append)
    reads.read(log, ColdRequest(1, 2, 1), answers["grows"].append)
    reads.fills.arena = SimpleNamespace(allocate=no_memory)
    reads.read(log, ColdRequest(1, 2, 1 << 20), answers["waits"].append)
    reads.fills.arena = shard.arena
    reads.stop()
    reads.read(log, ColdRequest(0, 2, 1 << 20), answers["late"].append)
    assert not any(answers.values())
    shard.run(lambda: all(answers.values()), 1_000_000)
    assert bytes(answers["fits"][0]) == b"".join(written)
    answers["fits"][0].release()
    for refused in ("grows", "waits", "late"):
        assert [one.code for one in answers[refused]] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert shard.arena.in_use_bytes == held


def no_memory(size: int) -> None:
    raise ArenaFull(f"no {size} bytes")


def test_after_a_stop_a_search_by_time_asks_about_no_further_segment(shard) -> None:
    log = shard.open(1, segment_bytes=600)
    for timestamp in (1000, 2000):
        append(log, 1, 500, timestamp=timestamp)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    answers: list = []
    log.files.segments.first.max_timestamp = 5000  # it looks late enough, and nothing in it is
    log.offset_for_timestamp(1500, 2, answers.append)
    shard.storage.reads.timestamps.stop()
    log.max_timestamp(2, answers.append)
    shard.run(lambda: len(answers) == 2, 1_000_000)
    assert [one.code for one in answers] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
