"""The rows for three brokers: who is asked for which partition, how a refusal is read, what the table says."""

import contextlib
import select
import struct
from types import SimpleNamespace

import pytest
from bench import cluster, load, raw

LEADERS = {0: "a:1", 1: "b:1", 2: "c:1", 3: "a:1", 4: "b:1", 5: "c:1", 6: "a:1"}


def test_every_partition_is_written_by_one_connection_and_to_its_leader(monkeypatch):
    opened = []

    class Producer:
        def __init__(self, where, epoll, topic, frames, acknowledged):
            opened.append((where, sorted({partition for partition, _ in frames})))

    monkeypatch.setattr(load, "Producer", Producer)
    with select.epoll() as epoll:
        cluster.producers_of(LEADERS, 6, "t", [b"x"], load.fresh(7))(epoll)
    assert sorted(partition for _, partitions in opened for partition in partitions) == list(range(7))
    assert all(LEADERS[partition] == where for where, partitions in opened for partition in partitions)
    assert len(opened) == 6


def test_a_refusal_of_a_produce_has_its_code(monkeypatch):
    answer = bytearray(raw.produce_answer("t").size - 4)
    struct.pack_into(">h", answer, 12 + len("t"), 6)
    caller = object.__new__(raw.Caller)
    monkeypatch.setattr(raw.Caller, "call", lambda self, request: answer)
    with pytest.raises(raw.ErrorAnswer) as refused:
        caller.produce_one("t", 0, b"x")
    assert refused.value.code == 6
    answer += b"and a message"
    with pytest.raises(raw.ErrorAnswer) as refused:
        caller.produce_one("t", 0, b"x")
    assert refused.value.code == 6


def test_the_table_judges_ratios_and_limits():
    ours, peer = cluster.OURS, cluster.PEER
    results = {
        "cost": {ours: [10.0, 12.0, 11.0], peer: [50.0]},
        "rate": {ours: [2000.0], peer: [1000.0]},
        "fail-over": {ours: [1.5], peer: [9.0]},
    }
    rows = {line[0]: line[1:] for line in cluster.cells(results)}
    assert rows["broker CPU, µs a request"] == ["3", "11.0", "50.0", "4.5 ×", "≥ 2.2 ×", "met"]
    assert rows["highest rate with p99 ≤ 50 ms, requests a second"][-1] == "missed"
    assert rows["kill -9 of a leader: s to the next ack"] == ["1", "1.50", "9.00", "6.0 ×", "≤ 3 s", "met"]
    assert cluster.cells({"bulk": {ours: [0.5]}})[0][1:] == ["1", "0.500", "–", "–", "≥ 3 ×", ""]


def test_the_highest_rate_is_sought_near_that_of_the_round_before(monkeypatch):
    asked = []
    monkeypatch.setattr(cluster, "_held", {})
    monkeypatch.setattr(cluster, "_holds", lambda subject, rate, plan: asked.append(rate) or rate <= 3000)
    subject = SimpleNamespace(name="ours")
    first, steps = cluster.highest_rate(subject, cluster.QUICK, 0), len(asked)
    assert cluster.highest_rate(subject, cluster.QUICK, 0) == pytest.approx(first)
    assert len(asked) - steps == cluster.BACK + 1 + 2, "those below, the one that was held, and two tries above it"


def test_no_row_starts_another_round_after_the_time_but_each_has_one(monkeypatch):
    ours, played = SimpleNamespace(name=cluster.OURS), []
    monkeypatch.setattr(cluster, "subjects", lambda *, peer: contextlib.nullcontext([ours]))
    monkeypatch.setattr(cluster, "scheduled", lambda *_: None)
    monkeypatch.setattr(cluster, "MEASURES", {key: lambda *_: played.append(1) or 1.0 for key in ("cost", "bulk")})
    console = SimpleNamespace(print=lambda *_, **__: None)
    found = cluster.measure(["cost", "bulk"], cluster.FULL, 1000, peer=False, console=console, minutes=0)
    assert {key: values[cluster.OURS] for key, values in found.items()} == {"cost": [1.0], "bulk": [1.0]}
    cluster.measure(["cost"], cluster.FULL, 1000, peer=False, console=console, minutes=60)
    assert len(played) == 2 + cluster.FULL.rounds
