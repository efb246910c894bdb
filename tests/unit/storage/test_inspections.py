"""Batches that are looked at before they are stored: memory, bounds, verdicts, what grows."""

import random
from types import SimpleNamespace

import pytest
from storage_support import new_shard

from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.storage.processes import inspections as module
from millstream.wire.inspection import AS_IT_CAME, Rules
from millstream.wire.records import build_batch, iter_records, parse_header


def rules(codec=AS_IT_CAME, **changed):
    wanted = {"level": None, "batch_bytes_max": 1 << 22, "keyed": False, "append_time": False}
    return Rules(codec, **{**wanted, "oldest_ms": 0, "newest_ms": 1 << 60, **changed})


def batch(size=100, count=3, codec=0, key=b"k"):
    body = random.Random(size).randbytes(size)
    return build_batch([(key, body, [], 1000 + i) for i in range(count)], compression=codec)


def start(shard, data, wanted, pieces=1):
    """Have a batch looked at: the list that its verdict will be in, or None if there was no room."""
    step = -(-len(data) // pieces)
    views = [memoryview(data)[at : at + step] for at in range(0, len(data), step)]
    verdicts = []
    return verdicts if shard.storage.inspections.start(views, len(data), wanted, verdicts.append) else None


def checked(shard, data, wanted, pieces=1):
    verdicts = start(shard, data, wanted, pieces)
    assert verdicts == []  # never before start returned
    shard.run(lambda: bool(verdicts))
    return verdicts[0]


def bytes_of(verdict):
    data = bytes(verdict.batch)
    verdict.batch.release()
    return data


@pytest.mark.parametrize("size", [10, 5000, 90_000, 400_000])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_batch_comes_back_as_it_went_if_nothing_is_wrong_with_it(size, pieces):
    shard = new_shard()
    held = shard.storage.arena.in_use_bytes
    sent = batch(size)
    verdict = checked(shard, sent, rules(), pieces)
    assert (verdict.error, verdict.refusal, bytes_of(verdict)) == (0, None, sent)
    assert shard.storage.arena.in_use_bytes == held


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("target", [0, 4])
def test_a_batch_shrinks_in_place_and_is_collected_when_it_grew(source, target):
    shard = new_shard()
    held = shard.storage.arena.in_use_bytes
    sent = build_batch([(b"k", bytes(300_000), [], 1000)], compression=source)
    verdict = checked(shard, sent, rules(target))
    got = bytes_of(verdict)
    assert parse_header(got).codec == (target if source != target else source)
    assert list(iter_records(got)) == list(iter_records(sent))
    assert shard.storage.arena.in_use_bytes == held


def test_a_refusal_gives_its_memory_back():
    shard = new_shard()
    held = shard.storage.arena.in_use_bytes
    verdict = checked(shard, batch(key=None), rules(keyed=True))
    assert verdict.error == ErrorCode.INVALID_RECORD and verdict.batch is None
    assert [index for index, _ in verdict.refusal.records] == [0, 1, 2]
    assert shard.storage.arena.in_use_bytes == held


def test_bytes_that_break_the_codec_in_any_way_are_an_answer_about_their_batch():
    shard = new_shard()
    rng = random.Random(5)
    for codec in (1, 2, 3, 4):
        for _ in range(40):
            data = bytearray(batch(2000, codec=codec))
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(61, len(data))] = rng.randrange(256)
            verdict = checked(shard, bytes(data), rules(0))
            if verdict.batch is not None:
                verdict.batch.release()
            else:
                assert verdict.error and verdict.refusal.message


def test_so_much_is_under_way_and_no_more(monkeypatch):
    monkeypatch.setattr(module, "BYTES_MAX", 3000)
    shard = new_shard()
    sent = batch(1000, 1)
    first = [start(shard, sent, rules()) for _ in range(2)]
    assert None not in first
    assert start(shard, sent, rules()) is None
    shard.run(lambda: all(first))
    for verdicts in first:
        verdicts[0].batch.release()
    bytes_of(checked(shard, sent, rules()))
    bytes_of(checked(shard, batch(20_000, 1), rules()))  # one alone may be larger


def test_without_memory_nothing_is_begun(monkeypatch):
    shard = new_shard()
    arena = shard.storage.arena
    held = arena.in_use_bytes
    allocate, left = arena.allocate, [1]

    def scarce(size):
        if not left[0]:
            raise ArenaFull("none left")
        left[0] -= 1
        return allocate(size)

    monkeypatch.setattr(shard.storage.inspections, "_arena", SimpleNamespace(allocate=scarce))
    assert start(shard, batch(200_000, 1), rules()) is None
    assert arena.in_use_bytes == held


@pytest.mark.parametrize("for_good", [False, True])
def test_a_batch_that_grew_waits_for_memory_and_not_for_ever(monkeypatch, for_good):
    shard = new_shard()
    arena = shard.storage.arena
    held = arena.in_use_bytes
    sent = build_batch([(b"k", bytes(300_000), [], 1000)], compression=1)
    verdicts = start(shard, sent, rules(0))
    allocate, refusals = arena.allocate, []

    def scarce(size):
        if for_good or len(refusals) < 5:
            refusals.append(size)
            raise ArenaFull("none left")
        return allocate(size)

    monkeypatch.setattr(shard.storage.inspections, "_arena", SimpleNamespace(allocate=scarce))
    shard.run(lambda: bool(verdicts))
    if for_good:
        assert verdicts[0].error == ErrorCode.NOT_ENOUGH_REPLICAS and verdicts[0].batch is None
    else:
        assert [r.value for r in iter_records(bytes_of(verdicts[0]))] == [bytes(300_000)]
    assert len(refusals) >= 5 and arena.in_use_bytes == held


def test_after_a_stop_nothing_is_begun_and_what_grew_is_refused():
    """The worker may have ended by the time its verdict is read: nothing would hand the batch over."""
    shard = new_shard()
    held = shard.storage.arena.in_use_bytes
    grew = start(shard, build_batch([(b"k", bytes(300_000), [], 1000)], compression=1), rules(0))
    fits = start(shard, batch(), rules())
    shard.storage.inspections.stop()
    assert start(shard, batch(), rules()) is None
    shard.run(lambda: bool(grew and fits))
    assert grew == [(ErrorCode.KAFKA_STORAGE_ERROR, None, None)]
    assert bytes_of(fits[0]) == batch()
    assert shard.storage.arena.in_use_bytes == held
