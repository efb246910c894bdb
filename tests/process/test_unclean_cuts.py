"""A partition of three brokers of which no replica has a sound log: a person decides whose log it continues from, and
every broker agrees, the one that was away included.
"""

import json
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from repairs_support import QUIET

from millstream.testing import cluster
from millstream.testing.stem import run_command
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

SETTINGS = {"checkpoint.ms": 200, "auto.leader.rebalance.enable": False}
SMALL = {"internal.segment.bytes": "20000", "min.insync.replicas": "2"}
RECORDS = 200
ALL = RECORDS + 20


def send(three, topic, numbers, patience_ms=60_000):
    """Send records as a stock client does; the numbers of those that were acknowledged."""
    good = []
    settings = {"bootstrap.servers": three.bootstrap, "message.timeout.ms": patience_ms, "batch.num.messages": 10}
    producer = Producer(settings | QUIET)
    for number in numbers:
        value = b"%06d" % number + bytes(500)
        producer.produce(topic, value, None, 0, lambda error, _, n=number: good.append(n) if error is None else None)
    producer.flush(patience_ms / 1000 + 60)
    return good


def read(three, topic):
    """The numbers of the records that a consumer gets from the beginning to the end."""
    settings = {"bootstrap.servers": three.bootstrap, "group.id": "c", "enable.partition.eof": True}
    consumer = Consumer(settings | QUIET)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(120)) is not None:
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        found.append(int(message.value()[:6]))
    consumer.close()
    return found


def directory(broker, topic):
    (found,) = [
        path.parent
        for path in (broker.data_dir / "topics").glob("*/topic")
        if path.read_text().strip().split("\n")[0] == topic
    ]
    return found / "0"


def damage(broker, topic, place):
    """The second half of the segment with the number ``place`` is gone, the oldest being 0; its first offset."""
    path = sorted(directory(broker, topic).glob("*.log"))[place]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    return int(path.stem)


def create(three, topic, config=SMALL):
    client = AdminClient({"bootstrap.servers": three.bootstrap} | QUIET)
    client.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(60)


def state(broker, topic):
    """(leader, replicas in sync) as a broker shows it."""
    part = AdminClient({"bootstrap.servers": broker.bootstrap} | QUIET).list_topics(timeout=60).topics[topic]
    return part.partitions[0].leader, sorted(part.partitions[0].isrs)


def in_sync(three, topic):
    return all(len(state(broker, topic)[1]) == 3 and state(broker, topic)[0] > 0 for broker in three.brokers.values())


def repair(three, topic, *words):
    return run_command("topic", "repair", f"{topic}:0", *words, "--bootstrap", three.bootstrap)


def put_aside(broker, topic):
    return directory(broker, topic).with_suffix(".damaged").exists()


def plan_of(three, node):
    """What an unclean cut would come to, as soon as it can be asked for."""

    def asked():
        found = repair(three, "cut", "--unclean", "--from", str(node), "--json")
        return json.loads(found.stdout) if found.returncode == 0 else None

    return until(asked, lambda: repair(three, "cut", "--unclean", "--from", str(node)))


def test_a_partition_whose_replicas_are_all_damaged_continues_from_the_one_that_is_named():
    with cluster(3, settings=SETTINGS, networks=False) as three:
        for topic in ("cut", "other"):
            create(three, topic)
        assert send(three, "cut", range(RECORDS)) == list(range(RECORDS))
        until(lambda: in_sync(three, "cut"), "all are in sync")
        refused = repair(three, "cut", "--unclean", "--from", "2", "--execute")
        assert refused.returncode and "is led by" in refused.stderr, refused
        for broker in three.brokers.values():
            until(lambda broker=broker: len(list(directory(broker, "cut").glob("*.log"))) > 5, "segments")
            assert broker.stop() == 0  # in order, so that the write-ahead log does not mend what is damaged
        three.start()
        until(lambda: in_sync(three, "cut"), "all are in sync after a start")
        assert send(three, "cut", range(RECORDS, ALL)) == list(range(RECORDS, ALL))
        for node in three.brokers:
            three.kill(node)
        damage(three.brokers[1], "cut", 1)
        end = damage(three.brokers[2], "cut", 4)
        damage(three.brokers[3], "cut", 2)
        (directory(three.brokers[2], "cut") / "epochs").write_bytes(b"no such file")
        three.start()
        until(lambda: all(put_aside(each, "cut") for each in three.brokers.values()), "all are put aside")
        assert send(three, "other", range(50)) == list(range(50))
        assert send(three, "cut", range(1), 5_000) == []
        plan = plan_of(three, 2)
        kept = plan["end_offset"]
        assert end <= kept < RECORDS and plan["lost"] == ALL - kept and not plan["done"], plan
        words = repair(three, "cut", "--unclean", "--from", "2").stderr
        assert "nothing was changed" in words and "acknowledged ones among them" in words, words
        assert all(put_aside(each, "cut") for each in three.brokers.values())

        three.kill(3)  # it is away, and must not bring back what it has
        until(lambda: "no live broker 3" in repair(three, "cut", "--unclean", "--from", "3").stderr, "3 is dead")
        done = repair(three, "cut", "--unclean", "--from", "2", "--execute")
        assert done.returncode == 0 and "is led by broker 2" in done.stderr, done
        until(lambda: len(state(three.brokers[2], "cut")[1]) == 2, "the first replica is filled")
        assert read(three, "cut") == list(range(kept))
        assert send(three, "cut", range(1000, 1050)) == list(range(1000, 1050))
        three.restart(3)
        until(lambda: in_sync(three, "cut"), "the one that was away begins empty and is filled")
        three.kill(2)
        until(lambda: state(three.brokers[1], "cut")[0] in (1, 3), "another one leads")
        assert read(three, "cut") == [*range(kept), *range(1000, 1050)]
        three.restart(2)
        until(lambda: in_sync(three, "cut"), "all are in sync again")
        assert send(three, "cut", range(2000, 2050)) == list(range(2000, 2050))
        for broker in three.brokers.values():
            assert broker.stop() == 0
        three.start()
        until(lambda: in_sync(three, "cut"), "all are in sync after a start")
        assert read(three, "cut") == [*range(kept), *range(1000, 1050), *range(2000, 2050)]
        assert read(three, "other") == list(range(50))
        assert not any(put_aside(each, "cut") for each in three.brokers.values())


def test_the_only_sound_replica_leads_with_everything_although_it_is_killed_when_that_is_decided():
    with cluster(3, settings=SETTINGS, networks=False) as three:
        create(three, "cut")
        assert send(three, "cut", range(RECORDS)) == list(range(RECORDS))
        until(lambda: in_sync(three, "cut"), "all are in sync")
        for node in three.brokers:
            three.kill(node)
        for node in (1, 3):
            (directory(three.brokers[node], "cut") / "epochs").write_bytes(b"no such file")
        three.start()
        until(lambda: all(put_aside(three.brokers[node], "cut") for node in (1, 3)), "two are put aside")
        assert send(three, "cut", range(1), 5_000) == []
        assert plan_of(three, 2)["end_offset"] == RECORDS
        words = [sys.executable, "-m", "millstream.cli", "topic", "repair", "cut:0", "--unclean", "--from", "2"]
        words += ["--execute", "--bootstrap", three.brokers[1].bootstrap]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as command:
            until(lambda: "UNCLEAN CUT: the replica of broker 2" in three.brokers[1].log_path.read_text(), "decided")
            three.kill(2)
            command.wait(60)
        three.restart(2)
        until(lambda: in_sync(three, "cut"), "the cut is carried out by the next start")
        assert read(three, "cut") == list(range(RECORDS))
        assert send(three, "cut", range(1000, 1020)) == list(range(1000, 1020))
        three.kill(2)
        until(lambda: state(three.brokers[1], "cut")[0] in (1, 3), "another one leads")
        assert read(three, "cut") == [*range(RECORDS), *range(1000, 1020)]
