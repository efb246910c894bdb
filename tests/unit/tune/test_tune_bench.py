"""The bench measures on the real disk and leaves nothing; what it proposes is decided by all rounds together."""

import json
import os

import msgspec
import pytest

from millstream.cli.application import run_application
from millstream.cli.failure import CommandFailed
from millstream.config.load import load_settings
from millstream.tune import bench, machine_file
from millstream.tune.machine_file import Figure, Machine, proposal_line, proposals


def settings(*pairs):
    return load_settings(None, ["shards=2", "memory.bytes=128MiB", *pairs], {})


def rounds(**changes):
    """Four rounds of a machine that the defaults fit; a change is a value for all of them, or one for each."""
    fits = {
        "sync_direct_4_KiB": 300,
        "sync_direct_64_KiB": 400,
        "sync_buffered_4_KiB": 310,
        "sync_buffered_64_KiB": 410,
        "cores": 2.0,
    }
    return [
        {
            name.replace("_", " "): value[place] if isinstance(value, list) else value
            for name, value in {**fits, **changes}.items()
            if value is not None
        }
        for place in range(4)
    ]


def test_a_machine_that_the_defaults_fit_gets_no_proposal():
    assert proposals(rounds(), settings()) == {}


def test_the_other_way_of_writing_is_proposed_if_every_round_speaks_for_it():
    slow = rounds(sync_buffered_4_KiB=200, sync_buffered_64_KiB=300)
    assert proposals(slow, settings("wal.pacing.us=100")) == {"storage.direct.io": "false"}
    assert proposals(slow, settings("storage.direct.io=false", "wal.pacing.us=100")) == {}
    once = rounds(sync_buffered_4_KiB=200, sync_buffered_64_KiB=[300, 300, 300, 460])
    assert proposals(once, settings("wal.pacing.us=100")) == {}
    fast = rounds(sync_direct_4_KiB=200, sync_direct_64_KiB=200)
    assert proposals(fast, settings("storage.direct.io=false", "wal.pacing.us=100")) == {"storage.direct.io": "true"}


def test_a_file_system_without_direct_writes_gets_no_proposal_about_them():
    assert proposals(rounds(sync_direct_4_KiB=None, sync_direct_64_KiB=None), settings()) == {}


def test_a_fast_disk_is_paced_less_and_never_below_a_bound():
    assert (
        proposals(rounds(sync_direct_4_KiB=[70, 90, 80, 70]), settings("storage.direct.io=true"))["wal.pacing.us"]
        == "180"
    )
    assert proposals(rounds(sync_direct_4_KiB=10), settings())["wal.pacing.us"] == "100"
    assert "wal.pacing.us" not in proposals(rounds(sync_direct_4_KiB=10), settings("wal.pacing.us=0"))


def test_fewer_shards_are_proposed_if_the_machine_never_gave_the_cores():
    assert proposals(rounds(cores=[1.1, 1.2, 0.9, 1.0]), settings()) == {"shards": "1"}
    assert proposals(rounds(cores=[1.1, 1.2, 2.0, 1.0]), settings()) == {}


def test_a_start_says_what_is_proposed_and_not_set(tmp_path):
    here = f"data.dir={tmp_path}"
    assert proposal_line(settings(here)) == ""
    proposed = {"storage.direct.io": "false", "shards": "2", "acks": "0"}
    machine = Machine(
        machine_file.VERSION, "2026-11-29T00:00:00Z", 30, 4, 0.0, [Figure("x", "s", 1, 1, 1, 1)], proposed
    )
    machine_file.write(str(tmp_path), machine)
    assert machine_file.read(str(tmp_path)) == machine
    line = proposal_line(settings(here))
    assert "proposes storage.direct.io=false (now true);" in line
    assert "shards" not in line
    assert "acks" not in line
    assert proposal_line(settings(here, "storage.direct.io=false")) == ""


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b"\xff\xfe"])
def test_a_file_that_makes_no_sense_is_as_if_it_were_not_there(tmp_path, content):
    (tmp_path / machine_file.NAME).write_bytes(content)
    assert proposal_line(settings(f"data.dir={tmp_path}")) == ""


def test_a_file_of_a_later_version_is_as_if_it_were_not_there(tmp_path):
    later = Machine(machine_file.VERSION + 1, "", 1, 1, 0, [], {"shards": "1"})
    (tmp_path / machine_file.NAME).write_bytes(msgspec.json.encode(later))
    assert proposal_line(settings(f"data.dir={tmp_path}")) == ""


def test_the_bench_measures_everything_and_leaves_one_file(tmp_path, capsys, monkeypatch):
    for name, small in (("_LOG_BYTES", 2 << 20), ("_COLD_BYTES", 4 << 20), ("_SIZES", (4096, 65536))):
        monkeypatch.setattr(bench, name, small)
    data = tmp_path / "data"
    assert run_application(["tune", "bench", "--set", f"data.dir={data}", "--seconds", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert os.listdir(data) == [machine_file.NAME]
    assert data.stat().st_mode & 0o777 == 0o700
    assert shown == json.loads((data / machine_file.NAME).read_text())
    figures = {one["name"]: one for one in shown["figures"]}
    assert {"sync buffered 4 KiB", "sync 4 KiB beside segments", "loopback 1 KiB there and back"} <= figures.keys()
    assert {"CRC-32C", "clock read", "cores"} <= figures.keys()
    for one in figures.values():
        assert 0 < one["low"] <= one["median"] <= one["high"]


def test_a_full_disk_is_refused_before_the_first_write(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_COLD_BYTES", 1 << 60)
    with pytest.raises(CommandFailed, match="too little room"):
        run_application(["tune", "bench", "--set", f"data.dir={tmp_path}", "--seconds", "1"])
    assert os.listdir(tmp_path) == []


def test_a_process_that_dies_while_it_measures_is_an_error(monkeypatch):
    monkeypatch.setattr(bench, "_busy", lambda core, seconds, writable: os._exit(3))
    with pytest.raises(OSError, match="measures a core"):
        bench._cores(0.1)
