"""Apache Kafka's own exactly-once programs against the broker: its message copier through kills, and Streams.

``TransactionalMessageCopier`` is what Kafka's system tests use. It reads a partition, writes its records elsewhere in
transactions, some of which it aborts, and commits its offsets with them. Two of them make a chain. Meanwhile copiers
and the broker are killed with SIGKILL in turn; in a cluster the leaderships of one broker after the other, coordinators
among them, are handed over between the kills. A read_committed consumer must find each record at the end of the chain
once, in order.
"""

import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bench.peers import kafka as peer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from conformance.checks import Bench, Check, CheckFailed
from conformance.java_apps import JavaApps, smoke_test_of_streams, started

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COUNT = 1_200
EACH = 20
KILLS = 4
"""In each of the two stages: of the copier and of the broker, in turn."""
KILL_AFTER_S = (3.5, 1.5)
"""A copier takes about two seconds to start; a broker is killed while one runs."""
LIMIT_S = 240.0


def streams_smoke_test_is_verified_with_exactly_once_v2(bench: Bench) -> None:
    smoke_test_of_streams(bench, "exactly_once_v2")


def a_chain_of_copiers_loses_and_repeats_nothing_through_kills(bench: Bench) -> None:
    topics = ("copied-0", "copied-1", "copied-2")
    for topic in topics:
        arguments = ["--bootstrap-server", bench.bootstrap, "--create", "--topic", topic, "--partitions", "1"]
        bench.call(peer.java_command(peer.TOPIC_COMMAND, arguments))
    producer = Producer({"bootstrap.servers": bench.bootstrap, "enable.idempotence": True})
    expected = [b"%d" % number for number in range(COUNT)]
    for value in expected:
        producer.produce(topics[0], value, partition=0)
    assert producer.flush(60) == 0, "the records to copy were not written"
    for source, target in pairwise(topics):
        _copy(bench, source, target)
    found = committed(bench.bootstrap, topics[-1], 60 * bench.patience)
    assert len(found) == COUNT, f"{len(found)} records arrived, {len(set(found))} different ones, {COUNT} were written"
    assert found == expected, "the order changed"


def _copy(bench: Bench, source: str, target: str) -> None:
    """Run copiers, one after the other, until everything is copied. A copier counts offsets, those of aborted records
    and of markers too, so that behind another one it never finds that it is done.
    """
    said = bench.folder / f"{source}.log"
    deadline = time.monotonic() + LIMIT_S * bench.patience
    kills = 0
    while time.monotonic() < deadline:
        with started(bench, _command(bench, source, target), said) as process:
            while process.poll() is None and time.monotonic() < deadline:
                if kills < KILLS:
                    _pause(process, KILL_AFTER_S[kills % 2])
                    if process.poll() is not None:
                        break
                    kills += 1
                    if kills % 2:
                        process.kill()
                        process.wait()
                    else:
                        bench.broker.hand_over()
                        bench.broker.kill()
                        bench.broker.restart()
                else:
                    _pause(process, 2.0)
                    if len(committed(bench.bootstrap, target, LIMIT_S * bench.patience)) >= COUNT:
                        return
        if process.returncode == 0:
            return  # it had reached the end
    raise CheckFailed(f"{source} was not copied in {LIMIT_S:g} s and {kills} kills: {_last_words(said)}")


def _pause(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)


def _command(bench: Bench, source: str, target: str) -> list[str]:
    given = {
        "--broker-list": bench.bootstrap,
        "--input-topic": source,
        "--input-partition": "0",
        "--output-topic": target,
        "--transaction-size": str(EACH),
        "--transaction-timeout": "20000",
        "--transactional-id": f"copier of {source}",
        "--consumer-group": f"copiers-of-{source}",
    }
    words = [word for pair in given.items() for word in pair]
    arguments = [*words, "--use-group-metadata", "--enable-random-aborts"]
    return peer.java_command(COPIER, arguments, "192m", ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"))


def _last_words(said: Path) -> str:
    return said.read_text(encoding="utf-8", errors="replace")[-300:]


def committed(bootstrap: str, topic: str, limit_s: float) -> list[bytes]:
    """All committed records of a topic of one partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline:
            for message in consumer.consume(1_000, 0.5):
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
    finally:
        consumer.close()
    raise CheckFailed(f"the end of {topic} was not reached; {len(found)} records so far")


class Transactions(JavaApps):
    """The suite; everything runs on one broker."""

    name = "transactions"
    about = "Kafka's exactly-once programs"

    def checks(self) -> Sequence[Check]:
        return (
            a_chain_of_copiers_loses_and_repeats_nothing_through_kills,
            streams_smoke_test_is_verified_with_exactly_once_v2,
        )
