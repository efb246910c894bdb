"""The audit's files: every line once and in order, whole files put aside, a full disk told, lost records counted."""

import json
import os
import stat

import pytest

from millstream.app.audit_file import DIRECTORY, FILE, AuditFile
from millstream.kafka import audit as audit_module
from millstream.kafka.audit import Audit
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab


class Shard:
    """A shard whose timers a test runs."""

    def __init__(self):
        self.stats = StatsSlab(0, "shard")
        self.reactor = self
        self.timers = []

    def call_later(self, delay_us, callback):
        self.timers.append(callback)

    def run_timers(self):
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()


def lines_of(directory):
    """All lines, the oldest first, and the names of the files."""
    names = sorted(os.listdir(directory), key=lambda name: -int(name.rpartition(".")[2]) if name != FILE else 0)
    return [line for name in names for line in (directory / name).read_bytes().splitlines()], names


def written(tmp_path, batches, file_bytes=1 << 20, files=8):
    """Give these batches to an audit file; what it answered."""
    reactor = Reactor(0, StatsSlab(0, "supervisor"))
    audit = AuditFile(reactor, str(tmp_path), file_bytes, files)
    answers = []

    def answered(done):
        answers.append(done)
        if len(answers) == len(batches):
            reactor.stop()

    for batch in batches:
        audit.take(batch, answered)
    assert reactor.run() == 0
    audit.close()
    reactor.close()
    return answers


def test_lines_are_written_once_in_order_and_for_the_owner_only(tmp_path):
    batches = [[b"line %d %d" % (n, m) for m in range(n % 7 + 1)] for n in range(50)]
    assert written(tmp_path, batches) == [True] * 50
    lines, names = lines_of(tmp_path / DIRECTORY)
    assert lines == [line for batch in batches for line in batch]
    assert names == [FILE]
    assert stat.S_IMODE((tmp_path / DIRECTORY / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / DIRECTORY).stat().st_mode) == 0o700
    assert written(tmp_path, [[b"of the next start"]]) == [True]
    assert lines_of(tmp_path / DIRECTORY)[0][-1] == b"of the next start"


@pytest.mark.parametrize("files", [0, 1, 3])
def test_files_of_a_size_are_put_aside_and_the_oldest_are_deleted(tmp_path, files):
    written(tmp_path, [[b"%04d" % n] for n in range(103)], file_bytes=50, files=files)
    lines, names = lines_of(tmp_path / DIRECTORY)
    assert names == [f"{FILE}.{n}" for n in range(files, 0, -1)] + [FILE]
    assert lines == [b"%04d" % n for n in range(100 - 10 * files, 103)]


def test_a_disk_that_fails_is_told(tmp_path):
    (tmp_path / DIRECTORY).write_text("a file is in the way")
    assert written(tmp_path, [[b"x"], [b"y"]]) == [False, False]


def test_records_wait_for_the_disk_and_are_counted_when_they_are_lost(monkeypatch):
    monkeypatch.setattr(audit_module, "QUEUE_MAX", 10)
    monkeypatch.setattr(audit_module, "BATCH_MAX", 4)
    shard, sent, done = Shard(), [], []
    for refuses in (False, True):
        audit = Audit(shard, refuses=refuses)
        for n in range(15):
            audit.changed("User:a", "10.0.0.1", "CreateTopics", [f"t{n}"], [])
        assert audit.refuses_changes == refuses
    assert shard.stats.counter("audit_lost_records").value == 10

    def send(lines, taken):
        sent.append(lines)
        done.append(taken)

    audit.start(send)
    assert [len(lines) for lines in sent] == [4]
    done.pop()(False)
    shard.run_timers()
    assert sent[1] == sent[0]
    while done:
        done.pop()(True)
    assert not audit.refuses_changes
    audit.login("User:b", "10.0.0.2", "SASL", "wrong password")
    done.pop()(True)
    records = [json.loads(line) for lines in sent[1:] for line in lines]
    assert [record["what"] for record in records[:10]] == [[f"t{n}"] for n in range(10)]
    assert [record["kind"] for record in records[10:]] == ["lost", "login"]
    assert records[10]["count"] == 5


def test_equal_refusals_of_a_minute_are_one_record_and_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(audit_module, "_SUMS_MAX", 3)
    shard, sent = Shard(), []
    audit = Audit(shard, refuses=False)
    audit.start(lambda lines, taken: (sent.extend(lines), taken(True)))
    for n in range(6):
        for _ in range(n + 1):
            audit.refused("User:a", "10.0.0.1", "Produce", "TOPIC_AUTHORIZATION_FAILED", f"t{n}")
    assert not sent
    shard.run_timers()
    records = [json.loads(line) for line in sent]
    assert [(record.get("name"), record["count"]) for record in records] == [
        ("t0", 1),
        ("t1", 2),
        ("t2", 3),
        (None, 15),
    ]


def test_long_lists_are_cut():
    shard, sent = Shard(), []
    audit = Audit(shard, refuses=False)
    audit.start(lambda lines, taken: (sent.extend(lines), taken(True)))
    audit.changed("User:a", "", "DeleteTopics", [f"t{n}" for n in range(10_000)], [])
    assert len(sent[0]) < 1_000
    assert json.loads(sent[0])["what"][-1] == "and 9980 more"
