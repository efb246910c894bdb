"""A table that its owner sets back: what stands beside its rows is not set back with it."""

import json
import logging
import shutil

import msgspec
import pytest
from table_support import N, Writer, ends, numbers, set_back, version_of
from upsert_support import Upserts, positions

from millstream.errors import Rejected
from millstream.pipeline.commit import Batch
from millstream.pipeline.dead_letters import REPLAY_QUERY, encode_record_offsets, remove_dead_letters
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.replay import _chunks, replay  # pyright: ignore[reportPrivateUsage]
from millstream.pipeline.tables.guard import offsets_of, require_whole, topic_ids_of
from millstream.spark.offsets import StreamOffset

KINDS = ["delta", "iceberg"]


def opened(directory, kind, query="q", **options):
    writer = Writer(directory, kind, query=query, letters=True, **options)
    writer.sink.take()
    return writer.open(N)


def letters(writer):
    return sorted(row["offset"] for batch in writer.sink.dead_letters.scan() for row in batch.to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["s", "s~backfill"])
def test_dead_letters_of_a_gap_that_is_sent_again_are_there_once(tmp_path, kind, name):
    one = opened(tmp_path, kind, name=name)
    one.append([{"n": 1}], ends(2), one.dead_letters(1))
    first = version_of(one)
    one.append([{"n": 2}], ends(4), one.dead_letters(3))
    one.append([{"n": 4}], ends(6), one.dead_letters(5))
    set_back(one, first)
    two = opened(tmp_path, kind, "two", name=name, replay=True)
    two.append([{"n": 2}], ends(4), two.dead_letters(3))
    three = opened(tmp_path, kind, "three", name=name)  # the run before has ended in the middle of the gap
    three.append([{"n": 4}], ends(8), three.dead_letters(5, 7))
    three.append([{"n": 8}], ends(9), three.dead_letters(7, value=b"!"))  # of a topic that was made again
    assert letters(three) == [1, 3, 5, 7, 7]
    assert numbers(three) == [1, 2, 4, 8]


def test_rows_without_a_place_may_be_dead_letters_of_one_text(tmp_path):
    one = opened(tmp_path, "delta", name="s~backfill")
    for end in (2, 4):
        one.append([{"n": end}], ends(end), one.dead_letters(None))
    assert [row["offset"] for batch in one.sink.dead_letters.scan() for row in batch.to_pylist()] == [None, None]


def test_a_replay_reads_a_dead_letter_once_that_is_there_twice(tmp_path):
    one = opened(tmp_path, "delta")
    for end, values in ((2, [b"?"]), (4, [b"?", b"!"])):
        one.append([{"n": end}], ends(end), sum((one.dead_letters(1, value=value) for value in values), ()))
    assert letters(one) == [1, 1, 1]
    chunks = [row["value"] for chunk in _chunks(one.sink.dead_letters, ["t"]) for row in chunk.to_pylist()]
    assert sorted(chunks) == [b"!", b"?"]


def test_sinks_that_share_a_table_and_its_dead_letters_are_not_replayed(tmp_path):
    sinks = [Sink(delta="t", name="one"), Sink(iceberg="ns.t"), Sink(delta=f"{tmp_path}/t", name="two", sql="SELECT 1")]
    with pytest.raises(Rejected, match=r"the sinks one and two both write to .*/t, and its dead letters do not say"):
        replay(Pipeline(pipeline="p", brokers="b", source=Source(topic="t"), sinks=sinks), str(tmp_path))


class Replays:
    """Replays of the dead letters of ``Writer``'s sink."""

    def __init__(self, writer):
        self.letters = writer.sink.dead_letters
        self.writer = Writer(writer.directory, writer.kind, name="s~replay")
        self.writer.sink.take()
        self.writer.open(N)

    def commit(self, number, offsets, *, removes=True):
        """Bring a row for the dead letters of these offsets."""
        files = self.writer.files([{"n": -offset} for offset in offsets])
        batch = Batch(
            query=REPLAY_QUERY, number=number, offsets=encode_record_offsets({"t": {0: offsets}}), files=files
        )
        record = self.writer.sink.commit(batch).record
        if removes:
            remove_dead_letters(self.letters, record, lambda _: None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [None, "letters not removed", "not claimed"])
def test_dead_letters_whose_rows_were_set_back_are_given_back(tmp_path, kind, fault, monkeypatch):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(9), one.dead_letters(1, 2, 3, 4))
    replays = Replays(one)
    replays.commit(0, [1])
    first = version_of(one)
    replays.commit(1, [2])
    replays.commit(2, [3], removes=fault != "letters not removed")
    require_whole(one.table, "p.s")
    set_back(one, first)
    with pytest.raises(Rejected, match=r"set back behind a replay of p\.s, and holds 1 of the 3 rows"):
        require_whole(one.table, "p.s")
    two = opened(tmp_path, kind, "two", replay=True)
    if fault == "not claimed":
        monkeypatch.setattr(type(two.table), "claim", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="division by zero"):
            two.sink.give_back()
        monkeypatch.undo()
    two.sink.give_back()
    assert letters(two) == [2, 3, 4]
    require_whole(two.table, "p.s")
    two.sink.give_back()
    three = opened(tmp_path, kind, "three")
    again = Replays(three)
    again.commit(9, [2, 3])
    assert letters(opened(tmp_path, kind, "four")) == [4]
    assert numbers(three) == [-3, -2, -1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_dead_letters_of_older_versions_that_were_cleaned_are_said_to_be_lost(tmp_path, kind, caplog):
    one = opened(tmp_path, kind)
    one.append([{"n": 1}], ends(9), one.dead_letters(1, 2))
    first = version_of(one)
    Replays(one).commit(0, [1])
    one.sink.dead_letters.expire(0)
    set_back(one, first)
    two = opened(tmp_path, kind, "two", replay=True)
    with caplog.at_level(logging.WARNING):
        two.sink.give_back()
    assert "lacks older versions, and the dead letters that only they had" in caplog.text
    assert letters(two) == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_was_set_back_behind_a_backfill_is_refused_until_it_has_its_rows(tmp_path, kind):
    main = opened(tmp_path, kind)
    main.append([{"n": 9}], ends(9))
    first = version_of(main)
    opened(tmp_path, kind, "b", name="s~backfill").append([{"n": 1}], ends(1))
    main.append([], ends(10))
    require_whole(main.table, "p.s")
    set_back(main, first)
    opened(tmp_path, kind, "two", replay=True).append([], ends(10))
    with pytest.raises(Rejected, match=r"behind a backfill of p\.s, and holds 0 of the 1 rows .* with the same ends"):
        require_whole(main.table, "p.s")
    opened(tmp_path, kind, "c", name="s~backfill", replay=True).append([{"n": 1}], ends(1))
    require_whole(main.table, "p.s")
    assert numbers(main) == [1, 9]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("owner", ["drops", "sets back"])
def test_backfills_are_refused_when_the_table_of_deleted_keys_was_lost(tmp_path, kind, owner):
    upserts = Upserts(tmp_path, kind)
    upserts.put((1, "a", 0, 4))
    if owner == "sets back":
        upserts.put((2, None, 0, 5))
    deletes = upserts.sink._deletes
    version = deletes.version()
    upserts.put((1, None, 0, 6))
    if owner == "drops":
        deletes.drop()
        shutil.rmtree(tmp_path / "t_deletes", ignore_errors=True)
    elif kind == "delta":
        deletes._fresh().restore(int(version))
    else:
        with deletes._fresh().manage_snapshots() as manage:
            manage.rollback_to_snapshot(int(version))
    again = Upserts(tmp_path, kind)
    again.number = 9
    again.put((3, "c", 0, 7))
    with pytest.raises(Rejected, match="older records could bring them back"):
        Upserts(tmp_path, kind, name="s~backfill")
    assert again.held() == {3: "c"}


def test_a_topic_that_is_left_out_for_a_while_continues_where_it_was(tmp_path):
    def two(end, other):
        found = {**positions({0: end}).topics, **positions({0: other}, topic="u", topic_id="2" * 32).topics}
        return json.dumps(StreamOffset(found).to_json())

    opened(tmp_path, "delta").append([{"n": 1}], two(1, 5))
    alone = opened(tmp_path, "delta", "two")
    alone.append([{"n": 2}], ends(2))
    alone.append([{"n": 3}], ends(3))
    last = opened(tmp_path, "delta", "three").sink.last
    assert offsets_of(last) == {"t": {"0": 3}, "u": {"0": 5}}
    assert topic_ids_of(last) == {"t": "1" * 32, "u": "2" * 32}
    made_again = positions({0: 1}, topic_id="3" * 32)
    alone = opened(tmp_path, "delta", "four")
    alone.append([{"n": 4}], json.dumps(made_again.to_json()))
    assert topic_ids_of(alone.sink.last) == {"t": "3" * 32, "u": "2" * 32}
    assert msgspec.json.decode(alone.sink.last.offsets)["v"] == 1
