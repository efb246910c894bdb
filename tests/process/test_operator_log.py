"""What an operator reads: a line for what he must see, none for what is ordinary, and no flood from a broken client."""

import os
import re
import resource
import socket
import time
import urllib.request

import pytest
from bench import processes
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.cli.exposition import Exposition
from millstream.testing.disk import Faults, Rule
from millstream.testing.stem import run_command
from waits import moment, until

pytestmark = pytest.mark.process


UNHURRIED = {"stall.limit.ms": 60_000}
"""A shard that waits long for its turn on a busy machine is no line."""

SLOW_DISK = "the disk has not written the write-ahead log"


def lines(broker, level="[A-Z]+", *, of_the_disk=False):
    """What it wrote at a level, without time, level and place, and without what a slow disk alone makes it say."""
    found = re.findall(rf"^\S+Z {level} +(?:\[[^\]]*\] )?(.*)$", broker.log_path.read_text(), re.MULTILINE)
    return [str(line) for line in found if of_the_disk or SLOW_DISK not in line]


def metrics(broker):
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        return Exposition(answer.read().decode(), time.monotonic())


def connect(broker):
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def closed(sock):
    """Wait until the broker has closed a connection."""
    with sock:
        try:
            return sock.recv(1) == b""
        except ConnectionResetError:
            return True


def test_what_a_kill_leaves_behind_is_mended_without_a_warning_and_counted(broker_factory):
    broker = broker_factory(topics={"t": 8}, shards=1, settings=UNHURRIED)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1})
    for number in range(2_000):
        producer.produce("t", b"x" * 500, partition=number % 8)
    assert producer.flush(60) == 0
    broker.kill()
    assert metrics(broker.start()).value("millstream_recovery_repairs_total", kind="wal_replayed") == 1
    assert lines(broker, "WARN") == []
    assert lines(broker, "ERROR") == []
    told = [line for line in lines(broker) if "the last stop was not an orderly one" in line]
    assert len(told) == 1
    assert "recovered 9 logs" in told[0], "eight partitions and the controller"


def lines_since(began, at_once=6, a_second=0.1):
    """So many lines of one kind may have been written since a time, and one of what began before it."""
    return 1 + at_once + (time.monotonic() - began) * a_second


def test_a_flood_of_bytes_that_are_no_request_is_a_few_lines_and_one_counter(broker_factory):
    broker, began = broker_factory(shards=1, settings=UNHURRIED), time.monotonic()
    for _ in range(20):
        for start in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x7f\xff\xff\xff"):
            sock = connect(broker)
            sock.sendall(start)
            assert closed(sock)
    assert metrics(broker).value("millstream_net_refused_frames_total") == 60
    warnings = lines(broker, "WARN")
    assert 1 <= len(warnings) <= lines_since(began)
    assert "speaks HTTP, and this port is for Kafka clients" in warnings[0]
    assert "speaks TLS, and this listener is PLAINTEXT" in warnings[1]
    assert "claims a request of 2147483647 bytes" in warnings[2]


def test_connections_over_the_limit_are_refused_with_a_line_that_names_the_setting(broker_factory):
    settings = {**UNHURRIED, "max.connections": 2}
    broker, began = broker_factory(shards=1, settings=settings), time.monotonic()
    kept = [connect(broker) for _ in range(2)]
    until(lambda: metrics(broker).value("millstream_net_connections") == 2, "both are open")
    for _ in range(20):
        assert closed(connect(broker))
    for sock in kept:
        sock.close()
    assert metrics(broker).value("millstream_net_refused_connections_total") == 20
    warnings = lines(broker, "WARN")
    assert 1 <= len(warnings) <= lines_since(began)
    assert re.fullmatch(r"refused a connection of 127\.0\.0\.1:\d+: max\.connections=2 are open", warnings[0])


def next_descriptor(broker):
    """The number that a file gets which the supervisor opens; there may be larger ones in use."""
    used = set(map(int, os.listdir(f"/proc/{broker.pid}/fd")))
    return min(set(range(len(used) + 1)) - used)


def test_without_descriptors_connections_wait_and_are_served_later(broker_factory):
    broker = broker_factory(shards=1, settings=UNHURRIED)
    unused = min(next_descriptor(broker) for _ in range(100))  # a look may meet a file that is open for a moment
    before, short_since = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE), time.monotonic()
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (unused, before[1]))
    sock = connect(broker)
    until(lambda: lines(broker, "ERROR"), "the operator is told")
    began, spent = time.monotonic(), processes.cpu_seconds(broker.pid)
    moment(1.5)  # long enough for everything that the supervisor does once a second
    spent = processes.cpu_seconds(broker.pid) - spent
    assert spent < (time.monotonic() - began) / 2, "the supervisor does not spin"
    assert broker.running
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
    sock.sendall(b"\x7f\xff\xff\xff")
    assert closed(sock), "it was accepted after all, and heard"
    errors = lines(broker, "ERROR")
    assert len(errors) <= lines_since(short_since, at_once=1, a_second=1)
    assert "Too many open files" in errors[0]


def test_deleted_records_are_a_line_that_names_them(broker_factory):
    broker = broker_factory(topics={"t": 1}, shards=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(10):
        producer.produce("t", b"x")
    producer.flush(60)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for _ in range(2):
        (done,) = admin.delete_records([TopicPartition("t", 0, 7)]).values()
        assert done.result(60).low_watermark == 7
    assert [line for line in lines(broker) if "DeleteRecords" in line] == ["DeleteRecords: offsets 0 to 6 are deleted"]


def test_a_service_manager_hears_when_it_serves_and_when_it_stops(broker_factory, tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        broker = broker_factory(shards=1, env={"NOTIFY_SOCKET": address})
        assert manager.recv(100) == b"READY=1"
        assert broker.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"


def test_a_disk_that_stands_still_is_told_while_it_does(broker_factory, tmp_path):
    faults = Faults(tmp_path / "faults")
    broker = broker_factory(
        topics={"t": 1},
        shards=1,
        settings={**UNHURRIED, "internal.disk.factory": "millstream.testing.disk:FaultDisk"},
        env=faults.environment,
    )
    faults.inject(Rule("sync", "/wal/", delay_ms=1_300))
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", b"x")
    until(lambda: lines(broker, "WARN", of_the_disk=True), "the operator is told")
    faults.inject()
    assert producer.flush(60) == 0
    until(lambda: any("the disk answered" in line for line in lines(broker)), "he is told that it is over")
    assert f"{SLOW_DISK} of shard 0 for" in lines(broker, "WARN", of_the_disk=True)[0]
    assert metrics(broker).value("millstream_storage_faults_total", kind="slow") >= 1
    faults.close()


def test_a_damaged_partition_is_named_by_every_door_until_its_topic_is_deleted(broker_factory):
    broker = broker_factory(topics={"t": 2}, shards=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(2):
        producer.produce("t", b"x", partition=partition)
    assert producer.flush(60) == 0
    broker.restart()
    broker.kill()
    (directory,) = [path.parent for path in broker.data_dir.glob("topics/*/1/*.log")]
    (directory / "fault").write_text("offsets 5 to 7 are nowhere")
    broker.start()
    assert metrics(broker).value("millstream_log_faulty") == 1
    assert [line for line in lines(broker, "ERROR") if line.startswith("not served: ")] == lines(broker, "ERROR")

    def cli(*words):
        return run_command(*words, "--bootstrap", broker.bootstrap)

    described = cli("topic", "describe", "t")
    assert described.returncode == 0
    assert "not served: 1; 'millstream topic repair t:1'" in described.stderr
    assert "partition 1 of topic 't'" in cli("topic", "trim", "t", "--before", "end").stderr
    assert cli("topic", "delete", "t", "--execute").returncode == 0
    until(lambda: metrics(broker).value("millstream_log_faulty") == 0, "the alarm is over")
    until(lambda: not directory.exists(), "its files are gone")
