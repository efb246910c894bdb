"""What ``millstream job scrub`` finds in one piece, and how a job goes on: without a Spark session."""

import os
from types import SimpleNamespace

import pytest
from fake_archive import Bucket
from spark_logs import plain

from millstream.errors import Rejected
from millstream.spark import archived_segment, scrub
from millstream.spark.scrub import Checked, Piece, begin, check, end, find_holes

TOPIC_ID = bytes(range(16))
BATCHES = [plain(10, start=start, value_bytes=200, leader_epoch=0) for start in (0, 10, 20)]
LOG = b"".join(BATCHES)


@pytest.fixture
def bucket(tmp_path):
    archived_segment._stores.clear()
    served = SimpleNamespace(topic_ids={}, files={}, archived={}, objects_url="")
    yield Bucket(tmp_path / "bucket", served, "t", TOPIC_ID).put(LOG).commit()
    archived_segment._stores.clear()


def of_object(bucket, **changes):
    (segment,) = bucket.segments
    fields = {"base_offset": 0, "end_offset": 30, "size_bytes": len(LOG), "archived": segment, **changes}
    return Piece("t", 0, "key", topic_id=TOPIC_ID.hex(), **fields)


def of_file(tmp_path, data, **changes):
    path = tmp_path / "segment"
    path.write_bytes(data)
    fields = {"base_offset": 0, "end_offset": 30, "size_bytes": len(LOG), **changes}
    return Piece("t", 0, str(path), **fields)


def flipped(at):
    data = bytearray(LOG)
    data[at] ^= 1
    return bytes(data)


def found(piece, url=""):
    answer = check(piece, url)
    return answer.batches, answer.finding, answer.what


@pytest.mark.parametrize("read_bytes", [100, len(BATCHES[0]) + 30, 1 << 20])
def test_a_sound_file_is_sound_however_it_is_read(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(scrub, "READ_BYTES", read_bytes)
    assert found(of_file(tmp_path, LOG)) == (3, "", "")


def test_bytes_behind_the_end_of_a_file_do_not_matter(tmp_path):
    assert found(of_file(tmp_path, LOG + b"\0" * 100)) == (3, "", "")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (flipped(len(LOG) - 1), "does not match its checksum"),
        (flipped(len(BATCHES[0]) + 7), "stands where offset 10 should"),
        (flipped(len(BATCHES[0]) + 16), "no batch header"),
        (LOG[:-1], "it ends at byte"),
        (LOG[: len(BATCHES[0])], "it ends at byte"),
        (b"", "it ends at byte 0"),
    ],
    ids=["bit", "offset", "magic", "cut", "short", "empty"],
)
def test_a_damaged_file_is_damaged(tmp_path, data, what):
    _, finding, said = found(of_file(tmp_path, data))
    assert finding == "damaged"
    assert what in said


def test_a_batch_that_is_missing_is_damage_unless_the_topic_is_compacted(tmp_path):
    data = BATCHES[0] + BATCHES[2]
    assert found(of_file(tmp_path, data, size_bytes=len(data)))[1] == "damaged"
    assert found(of_file(tmp_path, data, size_bytes=len(data), gaps=True)) == (2, "", "")


def test_a_leader_epoch_that_falls_is_damage(tmp_path):
    data = plain(15, leader_epoch=3) + plain(15, start=15, leader_epoch=2)
    assert "leader epoch 2 after 3" in found(of_file(tmp_path, data, size_bytes=len(data)))[2]


def test_a_file_that_is_gone_is_missing(tmp_path):
    piece = of_file(tmp_path, LOG)
    os.remove(piece.place)
    assert found(piece)[1] == "missing"


@pytest.mark.parametrize("read_bytes", [100, 1 << 20])
def test_a_sound_object_is_sound(bucket, monkeypatch, read_bytes):
    monkeypatch.setattr(scrub, "READ_BYTES", read_bytes)
    assert found(of_object(bucket), bucket.store.url) == (3, "", "")


@pytest.mark.parametrize("at", [0, 20, len(LOG) - 1, len(LOG) + 30])
def test_a_flipped_bit_anywhere_in_an_object_is_damage(bucket, at):
    data = bytearray(bucket.path(0).read_bytes())
    data[at] ^= 1
    bucket.path(0).write_bytes(data)
    assert found(of_object(bucket), bucket.store.url)[1] == "damaged"


def test_an_object_of_another_size_is_damaged_and_one_that_is_gone_missing(bucket):
    bucket.path(0).write_bytes(bucket.path(0).read_bytes() + b"x")
    assert "bytes, " in found(of_object(bucket), bucket.store.url)[2]
    bucket.path(0).unlink()
    assert found(of_object(bucket), bucket.store.url)[1] == "missing"


def test_holes_are_what_no_piece_has():
    pieces = [Piece("t", 0, "", base, end, 1) for base, end in ((10, 20), (20, 30), (35, 40))]
    assert list(find_holes(pieces, 10)) == [(30, 35)]
    assert list(find_holes(pieces, 5)) == [(5, 10), (30, 35)]
    assert list(find_holes([], 5)) == []


def test_a_job_goes_on_with_what_is_not_known_to_be_sound(tmp_path):
    directory = str(tmp_path / "job")
    sound, bad = Piece("t", 0, "a", 0, 1, 1), Piece("t", 0, "b", 1, 2, 1)
    assert begin(directory, ["t"]) == {}
    with open(tmp_path / "job" / "checked.jsonl", "wb") as file:
        file.writelines(
            scrub.msgspec.json.encode(one) + b"\n" for one in (Checked(sound, 1), Checked(bad, 1, "damaged", "why"))
        )
        file.write(b'{"piece":{"topic"')
    assert list(begin(directory, ["t"])) == [sound]
    with pytest.raises(Rejected, match="a job that reads t: give this one another --id"):
        begin(directory, [])
    end(directory)
    assert begin(directory, ["t"]) == {}


def test_the_directory_of_another_kind_of_job_is_refused(tmp_path):
    (tmp_path / "job.json").write_bytes(b'{"source":"a","target":"b","ends":{}}')
    with pytest.raises(Rejected, match="another kind"):
        begin(str(tmp_path), ["a"])
