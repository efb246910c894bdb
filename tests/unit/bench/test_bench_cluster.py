"""The rows for three brokers: who is asked for which partition, how a refusal is read, what the table says."""

import select
import struct

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
    assert rows["broker CPU, µs a request"] == ["11.0", "50.0", "4.5 ×", "≥ 4 ×", "met"]
    assert rows["highest rate with p99 ≤ 50 ms, requests a second"][-1] == "missed"
    assert rows["kill -9 of a leader: s to the next ack"] == ["1.50", "9.00", "6.0 ×", "≤ 3 s", "met"]
    assert cluster.cells({"bulk": {ours: [0.5]}})[0][1:] == ["0.500", "–", "–", "≥ 3 ×", ""]
