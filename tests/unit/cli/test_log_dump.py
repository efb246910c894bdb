"""``millstream log dump`` of write-ahead logs: the records of their batches, several files, damaged bytes."""

import json

import pytest

from millstream.format import wal
from millstream.wire.records import build_batch


def logged(base, *values, compression=0):
    records = [(None, value, [], 1000) for value in values]
    return bytes(build_batch(records, base_offset=base, compression=compression))


def wal_file(path, *batches, sequence=1):
    """A file with one frame of batches, (group, bytes) each; where their payloads begin."""
    table = b"".join(
        wal.RECORD.pack(
            wal.Kind.BATCH,
            0,
            0,
            group,
            int.from_bytes(batch[12:16], "big", signed=True),
            int.from_bytes(batch[:8], "big", signed=True),
            0,
            len(batch),
            int.from_bytes(batch[17:21], "big"),
        )
        for group, batch in batches
    )
    payload = b"".join(batch for _, batch in batches)
    slot = memoryview(bytearray(2 * wal.FRAME_HEAD_BYTES + len(table)))
    slot[64 : 64 + len(table)] = table
    wal.pack_heads(slot, len(batches), len(payload), 7, sequence, sequence - 1, 1, wal.FILE_HEADER_BYTES)
    padding = bytes(wal.padding_bytes(len(batches), len(payload), wal.FILE_HEADER_BYTES))
    header = wal.encode_file_header(wal.FileHeader(0, 7, sequence, 64 * 1024))
    data = (header + bytes(slot[:-64]) + payload + padding + bytes(slot[64:])).ljust(64 * 1024, b"\0")
    path.write_bytes(data)
    begins = [wal.FILE_HEADER_BYTES + wal.FRAME_HEAD_BYTES + len(table)]
    for _, batch in batches[:-1]:
        begins.append(begins[-1] + len(batch))
    return begins


def documents(outcome):
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_the_records_of_a_write_ahead_log_are_shown_with_their_group(millstream, tmp_path):
    file = tmp_path / "00000000.wal"
    begins = wal_file(file, (4, logged(10, b"one", b"two")), (9, logged(0, b"three", compression=1)))
    shown = documents(millstream("log", "dump", file, "--records", "--json"))
    assert [one["kind"] for one in shown] == (
        ["wal", "frame", "entry", "batch", "record", "record", "entry", "batch", "record"]
    )
    records = [(one["group"], one["offset"], one["value"]) for one in shown if one["kind"] == "record"]
    assert records == [(4, 10, "one"), (4, 11, "two"), (9, 0, "three")]
    assert [one["position"] for one in shown if one["kind"] == "batch"] == begins
    for_people = millstream("log", "dump", file, "--records").out
    assert "\n  record group=4 offset=11 " in for_people
    plain = documents(millstream("log", "dump", file, "--json"))
    assert [one["kind"] for one in plain] == ["wal", "frame", "entry", "entry"]


@pytest.mark.parametrize(
    ("at", "byte", "said"),
    [
        (8, 0xFF, "the batch cannot be read: batch length -"),
        (8, 0x7F, "its records cannot be read: batch ends early"),
        (64, 0xFF, "its records cannot be read: "),
    ],
)
def test_a_damaged_batch_of_a_write_ahead_log_hides_no_other(millstream, tmp_path, at, byte, said):
    file = tmp_path / "00000000.wal"
    begins = wal_file(file, (4, logged(10, b"one")), (9, logged(0, b"two")))
    data = bytearray(file.read_bytes())
    data[begins[0] + at] = byte
    file.write_bytes(data)
    shown = documents(millstream("log", "dump", file, "--records", "--json"))
    assert [one["crc_matches"] for one in shown if one["kind"] == "entry"] == [False, True]
    assert [one["value"] for one in shown if one["kind"] == "record"] == ["two"]
    ends = [one["reason"] for one in shown if one["kind"] == "end"]
    assert len(ends) == 1
    assert ends[0].startswith(said)


def test_any_byte_of_a_batch_may_be_wrong(millstream, tmp_path):
    file = tmp_path / "00000000.wal"
    batch = logged(10, b"one" * 10, compression=1)
    bent = [(4, batch[:at] + bytes([batch[at] ^ 0xFF]) + batch[at + 1 :]) for at in range(len(batch))]
    wal_file(file, *bent, (9, logged(0, b"two")))
    shown = documents(millstream("log", "dump", file, "--records", "--json"))
    assert len([one for one in shown if one["kind"] == "entry"]) == len(batch) + 1
    assert shown[-1]["value"] == "two"
    assert millstream("log", "dump", file, "--records").code == 0


def test_several_files_are_shown_one_after_the_other(millstream, tmp_path):
    first, second = tmp_path / "00000000.wal", tmp_path / "00000001.wal"
    wal_file(first, (4, logged(0, b"one")))
    wal_file(second, (4, logged(1, b"two")), sequence=2)
    shown = documents(millstream("log", "dump", first, second, "--records", "--json"))
    assert [one["file"] for one in shown if one["kind"] == "wal"] == [str(first), str(second)]
    assert [one["value"] for one in shown if one["kind"] == "record"] == ["one", "two"]
    limited = documents(millstream("log", "dump", first, second, "--limit", 1, "--json"))
    assert [one["kind"] for one in limited] == ["wal", "frame", "entry"]
    missing = millstream("log", "dump", first, tmp_path / "00000002.wal")
    assert (missing.code, missing.out) == (1, "")
    assert "there is no file" in missing.err
    assert millstream("log", "dump", first, "--topic", "t").code == 2
