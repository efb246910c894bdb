"""The audit is read from its end: pages, renamed files, times that are equal, lines that are no records."""

import json

import pytest

from millstream.app import audit_reading
from millstream.app.audit_reading import read_audit


def write(directory, name, *records):
    directory.joinpath("audit").mkdir(exist_ok=True)
    lines = [one if isinstance(one, bytes) else json.dumps(one, separators=(",", ":")).encode() for one in records]
    (directory / "audit" / name).write_bytes(b"".join(line + b"\n" for line in lines))


def record(number, at=None, **more):
    return {
        "time": f"2026-11-29T10:{at if at is not None else number:02}:00.000Z",
        "kind": "change",
        "n": number,
        **more,
    }


def numbers(found):
    return [one["n"] for one in found["records"]]


def test_without_files_there_are_no_records(tmp_path):
    assert read_audit(str(tmp_path), 8, 10, "", "") == {"records": [], "next_before": ""}


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1 << 18])
def test_pages_continue_through_renamed_files_without_a_gap(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(audit_reading, "_BLOCK_BYTES", block_bytes)
    write(tmp_path, "audit.jsonl", *(record(n) for n in range(20, 30)))
    write(tmp_path, "audit.jsonl.1", *(record(n) for n in range(5, 20)))
    write(tmp_path, "audit.jsonl.2", *(record(n) for n in range(5)))
    seen, before = [], ""
    while True:
        found = read_audit(str(tmp_path), 8, 7, before, "")
        seen += numbers(found)
        before = found["next_before"]
        if not before:
            break
    assert seen == list(range(29, -1, -1))


def test_records_of_one_time_stay_together(tmp_path):
    write(tmp_path, "audit.jsonl", *(record(n, at=n // 4) for n in range(12)))
    first = read_audit(str(tmp_path), 8, 2, "", "")
    assert numbers(first) == [11, 10, 9, 8]
    assert numbers(read_audit(str(tmp_path), 8, 2, first["next_before"], "")) == [7, 6, 5, 4]


def test_a_word_finds_records_and_what_is_no_record_is_passed_over(tmp_path):
    half = b'{"time":"2026-11-29T10:59:00.000Z","ki'
    write(tmp_path, "audit.jsonl", record(1, principal="User:Alice"), b"alice", b"[1]", record(2), half)
    assert numbers(read_audit(str(tmp_path), 8, 10, "", "aLICE")) == [1]
    assert numbers(read_audit(str(tmp_path), 8, 10, "", "")) == [2, 1]


def test_a_search_is_bounded_and_says_how_far_it_came(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_reading, "SCAN_BYTES_MAX", 200)
    write(tmp_path, "audit.jsonl", *(record(n) for n in range(30)))
    found = read_audit(str(tmp_path), 8, 10, "", 'n":0')
    steps = 1
    while found["next_before"]:
        assert numbers(found) == []
        found = read_audit(str(tmp_path), 8, 10, found["next_before"], 'n":0')
        steps += 1
    assert numbers(found) == [0]
    assert 5 < steps < 20
