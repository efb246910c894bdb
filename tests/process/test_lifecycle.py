"""Birth and death of a broker: it stops when told, refuses to run twice, and never runs in part."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys

import pytest
from bench import processes, raw
from confluent_kafka import Producer

from millstream.config.ports import free_ports
from millstream.testing import Broker
from waits import PATIENCE_S, until

pytestmark = pytest.mark.process


def roles(broker):
    """Name → pids of all processes below the supervisor."""
    found = {}
    for pid in processes.tree(broker.pid)[1:]:
        found.setdefault(processes.comm_of(pid), []).append(pid)
    return found


def test_sigterm_under_load_exits_0_and_keeps_what_was_acknowledged(broker_factory):
    broker = broker_factory(topics={"t": 2}, shards=2)
    pids = processes.tree(broker.pid)
    assert len(pids) >= 7, "a supervisor, and a shard, a writer and a worker for each of two"
    acknowledged = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "log_level": 0})
    for i in itertools.count():
        producer.produce(
            "t", str(i), partition=i % 2, on_delivery=lambda e, m: e or acknowledged.append((m.partition(), m.offset()))
        )
        producer.poll(0.001 if i > 5000 else 0)
        if len(acknowledged) > 500 and {p for p, _ in acknowledged} == {0, 1}:
            break
    assert broker.stop() == 0
    assert processes.wait_gone(pids) == []
    assert not (broker.data_dir / "broker.json").exists()
    producer.purge()
    producer.flush(5)

    broker.restart()
    with raw.Caller(broker.bootstrap) as caller:
        for partition in range(2):
            wanted = {offset for p, offset in acknowledged if p == partition}
            request, _ = raw.fetch("t", partition, 8 << 20)
            answer = raw.FetchAnswer(memoryview(caller.call(request)), "t")
            assert answer.high_watermark > max(wanted)


def test_an_idle_broker_stops(broker_factory):
    broker = broker_factory()
    assert broker.stop() == 0


def refused(broker, *arguments):
    """What a second ``start`` says; it must fail, and soon."""
    command = [*broker.command()[:3], "start", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    return done.stderr


def test_a_second_broker_on_the_same_directory_is_refused_by_name(broker_factory):
    broker = broker_factory(topics={"t": 1})
    said = refused(broker, "--data", str(broker.data_dir), "--listen", "127.0.0.1:0")
    assert str(broker.data_dir) in said
    assert "Traceback" not in said
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("t", 0, raw.batch([b"unharmed"])) == 0


def test_a_second_broker_on_the_same_port_is_refused_by_name(broker_factory, tmp_path):
    broker = broker_factory(topics={"t": 1})
    said = refused(broker, "--data", str(tmp_path / "other"), "--listen", broker.bootstrap)
    assert broker.bootstrap in said
    assert "Traceback" not in said
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("t", 0, raw.batch([b"unharmed"])) == 0


@pytest.mark.parametrize(
    ("role", "number"),
    [
        ("shard 0", signal.SIGKILL),
        ("shard 1", signal.SIGSEGV),
        ("writer 0", signal.SIGSEGV),
        ("worker 1", signal.SIGKILL),
        ("cleaner 0", signal.SIGKILL),
    ],
)
def test_a_process_that_dies_takes_the_broker_down(broker_factory, role, number):
    """Two shards with three helper processes each."""
    broker = broker_factory(shards=2)
    below = processes.tree(broker.pid)[1:]
    assert len(below) == 8, roles(broker)
    pids = [broker.pid, *below]
    os.kill(roles(broker)[f"ms {role}"][0], number)
    assert broker.wait(60) != 0
    assert processes.wait_gone(pids) == []
    assert broker.log_tail().strip(), "the reason is on stderr"


def test_the_first_tiered_topic_starts_an_archive_process_whose_end_takes_the_broker_down(broker_factory):
    broker = broker_factory(shards=1)
    before = roles(broker)
    assert "ms archive 0" not in before
    broker.new_topic(config={"storage.mode": "tiered"})
    until(lambda: "ms archive 0" in roles(broker), lambda: roles(broker))
    (pid,) = roles(broker)["ms archive 0"]

    def kept():
        with contextlib.suppress(FileNotFoundError):  # it closes them just now
            return {os.readlink(f"/proc/{pid}/fd/{one}").partition(":")[0] for one in os.listdir(f"/proc/{pid}/fd")}
        return {"anon_inode"}

    until(lambda: "anon_inode" not in kept(), "something of the shard's reactor is kept")
    pids = [broker.pid, *processes.tree(broker.pid)[1:]]
    os.kill(pid, signal.SIGSEGV)
    assert broker.wait(60) != 0
    assert processes.wait_gone(pids) == []


def test_a_killed_supervisor_leaves_no_process(broker_factory):
    broker = broker_factory(shards=2)
    pids = processes.tree(broker.pid)
    os.kill(broker.pid, signal.SIGKILL)
    assert broker.wait(60) != 0
    assert processes.wait_gone(pids) == []


STARTS_ONE = """
import sys, threading
from millstream.testing import Broker
from millstream.testing.stem import grow
if sys.argv[2:]:
    grow()
broker = Broker(data_dir=sys.argv[1], shards=1)
starting = threading.Thread(target=broker.start)
starting.start()
starting.join()
print(broker.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("way", [[], ["grown"]], ids=["exec", "fork"])
def test_a_broker_of_a_test_ends_with_the_process_that_started_it(tmp_path, way):
    """Not with the thread, and also if nothing could be done at the end."""
    command = [sys.executable, "-c", STARTS_ONE, str(tmp_path / "data"), *way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        pids = processes.tree(int(test.stdout.readline()))
        assert len(pids) > 3
        test.kill()
    assert processes.wait_gone(pids) == []


def test_it_comes_back_on_the_same_data_after_every_kind_of_end(broker_factory):
    broker = broker_factory(topics={"t": 1}, listen=f"127.0.0.1:{free_ports(1)[0]}")
    batch = raw.batch([b"one more"])
    ends = [broker.stop, broker.kill, lambda: os.kill(broker.pid, signal.SIGKILL) or broker.wait(60)]
    for offset, end in enumerate(ends):
        with raw.Caller(broker.bootstrap) as caller:
            assert caller.produce_one("t", 0, batch) == offset
        end()
        broker.start()
    with raw.Caller(broker.bootstrap) as caller:
        assert caller.produce_one("t", 0, batch) == len(ends)


def test_fewer_and_more_shards_on_the_same_data(broker_factory, tmp_path):
    data = tmp_path / "data"
    batch = raw.batch([b"one more"])
    topics = {"t": 5}
    for count, shards in enumerate([2, 1, 3]):
        broker = broker_factory(topics=topics, data_dir=data, shards=shards)
        topics = {}
        with raw.Caller(broker.bootstrap) as caller:
            for partition in range(5):
                assert caller.produce_one("t", partition, batch) == count
        broker.kill()


def test_a_broker_whose_topics_cannot_be_made_is_not_left_behind(tmp_path):
    first = Broker(data_dir=tmp_path / "data", topics={"t": 1})
    first.start()
    assert first.stop() == 0
    second = Broker(data_dir=tmp_path / "data", topics={"t": 1})
    with pytest.raises(RuntimeError, match="TOPIC_ALREADY_EXISTS"):
        second.start()
    assert not second.running
