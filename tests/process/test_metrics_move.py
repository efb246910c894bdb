"""A healthy broker that does a bit of everything moves its metrics; those that it cannot move are listed with why."""

import contextlib
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.cli.__main__ import main
from millstream.events import EventsClient
from millstream.telemetry.table import ASKED, METRICS, Kind
from waits import Patience, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SETTINGS = {
    "log.retention.check.interval.ms": 300,
    "connections.max.idle.ms": 4000,
    "socket.frame.timeout.ms": 1000,
    "wal.bytes": "4MiB",
    "wal.file.bytes": "1MiB",
    "checkpoint.bytes": "1MiB",
    "checkpoint.ms": 500,
    "log.cleaner.backoff.ms": 200,
    "max.connections": 60,
    "stall.limit.ms": 5,
    "group.min.session.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "audit.log": "on",
    "audit.topic": "audit",
}
MEMBER = """
import sys
from confluent_kafka import Consumer
group = {"group.id": "silent", "session.timeout.ms": 1500, "heartbeat.interval.ms": 300}
consumer = Consumer({"bootstrap.servers": sys.argv[1], **group})
consumer.subscribe(["many"])
while not consumer.assignment():
    consumer.poll(0.1)
print("in", flush=True)
while True:
    consumer.poll(0.1)
"""
"""A member of a group, to be killed."""

FAULTS = "a healthy disk has none; test_operator_log, test_full_disks and test_faults make them"
OVERLOAD = "only under more load than a test should make; test_mailbox, test_overload and test_fetch_call do"
ONE = "only in a cluster of several brokers; test_cluster, test_cluster_repairs and test_in_sync move them"
STORE = "only when the object store fails; test_objects does that"
WARM = "only with a warm cache; test_hot_tier does that"
SHARED = "only with shared topics; test_shared_topics, test_joined_objects and test_shared_wal move them"
SHARES = "only members of share groups move them; test_share_limits and test_share_partition do"
SECURE = "only with TLS or logins; test_tls_listeners and test_logins move them"
POOLS = "only when an event partition's pools are too small; test_events and test_event_pools do that"
IN_MEMORY = "only events that are in memory no more are read from files; test_events does that"
NOT_HERE = {
    "audit_lost_records": "only when the disk of the audit is too slow; test_audit_file does that",
    "audit_topic_gaps": "only when files of the audit are removed uncopied; test_audit_topic_files does that",
    "event_pool_leased_bytes": "leased for the length of a push or a feed",
    "event_pool_oversized": POOLS,
    "event_pool_waits": POOLS,
    "insecure_listeners": "only where other machines reach a clear listener; test_security_command does that",
    "archive_lag_bytes": "0 again as soon as everything is archived",
    "archive_upload_lag": "0 again as soon as everything is archived",
    "archive_uploads_behind": "only while uploads fall behind; test_upload_priority makes them",
    "transaction_late_partitions": "only when a partition is late to learn how a transaction ended",
    "archive_parts": "only once thousands of segments of a partition are archived; test_part_files does that",
    "archive_read_failures": STORE,
    "archive_upload_failures": STORE,
    "object_request_failures": STORE,
    "object_hedged_reads": "only when the object store answers late; test_hedged_reads does that",
    **dict.fromkeys(
        (
            "cluster_brokers",
            "cluster_moves",
            "controller_active",
            "controller_term",
            "replica_count",
            "replica_elections",
            "replica_install_left",
            "replica_install_received_bytes",
            "replica_install_sent_bytes",
            "replica_installing",
            "replica_installs",
            "replica_lag_max",
            "replica_leaderless",
            "replica_leaders",
            "replica_looked_at_bytes",
            "replica_lost",
            "replica_term_max",
            "replica_throttled",
            "replica_under_replicated",
            "take_over_partitions",
            "take_over_waiting",
            "take_overs",
        ),
        ONE,
    ),
    **dict.fromkeys(
        (
            "shared_joined_bytes",
            "shared_joins",
            "shared_objects",
            "shared_uncommitted_bytes",
            "shared_upload_lag",
            "shared_wal_latency",
            "shared_wal_objects",
            "shared_wal_pending_bytes",
            "shared_wal_written_bytes",
        ),
        SHARED,
    ),
    **dict.fromkeys(
        (
            "share_acknowledged_records",
            "share_acquired_records",
            "share_exhausted_records",
            "share_partitions",
            "share_released_records",
            "share_sessions",
            "share_state_failed_writes",
            "share_state_writes",
            "share_timed_out_records",
        ),
        SHARES,
    ),
    **dict.fromkeys(
        (
            "kafka_logins",
            "tls_certificate_end",
            "tls_failed_handshakes",
            "tls_half_handshakes",
            "tls_handshakes",
        ),
        SECURE,
    ),
    "archive_refused_replacements": "only when a job replaces segments; test_rewriting_jobs does",
    "archive_replaced_segments": "only when a job replaces segments; test_replaced_segments and test_rewriting_jobs do",
    "partition_failures": "only when code fails; test_failed_partitions makes it",
    **dict.fromkeys(
        (
            "hot_tier_dropped_fills",
            "hot_tier_evictions",
            "hot_tier_fills",
            "hot_tier_hit_rate",
            "hot_tier_hits",
            "hot_tier_misses",
            "hot_tier_read_latency",
            "hot_tier_refused_fills",
            "hot_tier_size_bytes",
        ),
        WARM,
    ),
    "event_files_opened": IN_MEMORY,
    "event_files_reused": IN_MEMORY,
    "event_files_overshot": IN_MEMORY,
    "log_faulty": FAULTS,
    "storage_faults": FAULTS,
    "storage_read_only": FAULTS,
    "recovery_repairs": FAULTS,
    "log_cleaner_uncleanable_partitions": FAULTS,
    "net_waiting_frames": OVERLOAD,
    "kafka_fetch_cut": OVERLOAD,
    "ring_full": OVERLOAD,
    "mailbox_timeouts": OVERLOAD,
    "mailbox_refused": OVERLOAD,
    "mailbox_lent_fragments": "lent for the length of one read",
    "wal_full_waits": "depends on who is faster, the disk or the client",
    "log_cleaner_max_dirty_percent": "0 again as soon as everything is compacted",
    "kafka_produce_duplicates": "no client can be made to lose an answer here; test_append does it",
    "kafka_producer_ids_expired": "looked at every ten minutes, as in Kafka",
    "kafka_fetch_sessions": "librdkafka fetches without a session; Java's clients have them",
    "kafka_fetch_sessions_evicted": "a session is kept for two minutes, as in Kafka",
    "group_expired_offsets": "offsets are kept for a minute at least",
    "controller_snapshots": "once a minute at most, and at a clean stop",
    "gc_pause": "a shard makes too little garbage for a collection",
    "reactor_stall_dumps": "depends on the machine",
    "reactor_long_stalls": "depends on the machine",
}


def values(broker):
    """Name of a sample → its sum over all labels."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    sums = {}
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def address(broker):
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


def create(broker, name, partitions, **configs):
    properties = {key.replace("_", "."): str(value) for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, config=properties)])[name].result(60)


def fill(broker, topic, count, size, **conf):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 200_000, **conf})
    for number in range(count):
        producer.produce(topic, b"v" * size, key=b"k%d" % (number % 50))
        if number % 100 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def consume(broker, group, count):
    """Read so many records and commit them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["many", "zipped"])
    seen, patience = 0, Patience()
    while seen < count:
        patience.check(f"{seen} of {count} records came")
        seen += len(consumer.consume(500, 0.2))
    consumer.commit(asynchronous=False)
    consumer.close()


def archive(broker):
    """A topic whose older segments are in the object store alone."""
    create(
        broker,
        "tiered",
        1,
        storage_mode="tiered",
        internal_segment_bytes=20_000,
        retention_ms=-1,
        retention_local_target_ms=0,
        file_delete_delay_ms=100,
    )
    fill(broker, "tiered", 400, 500, **{"batch.num.messages": 20})


def throttled(broker):
    """A producer of a client id that has a quota of nearly nothing; it is not read for a while."""
    quota = ["quota", "create", "--client-id", "greedy", "--producer-byte-rate", "1000"]
    assert main([*quota, "--bootstrap", broker.bootstrap]) == 0
    greedy = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "greedy"})
    for _ in range(50):
        greedy.produce("many", b"x" * 10_000)
    return greedy


def hold(broker):
    """A producer whose transaction stays open."""
    held = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "held", "transaction.timeout.ms": 600_000}
    )
    held.init_transactions(60)
    held.begin_transaction()
    held.produce("many", b"not yet")
    assert held.flush(60) == 0
    return held


def reader_of_archived(broker):
    archived = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "a"})
    archived.assign([TopicPartition("tiered", 0, 0)])
    return archived


def test_a_bit_of_everything_moves_every_metric_that_a_healthy_broker_can_move(broker_factory, tmp_path):
    objects = {"objects.url": f"file://{tmp_path / 'bucket'}"}
    broker = broker_factory(topics={"many": 4}, shards=2, memory="64MiB", settings={**SETTINGS, **objects})
    create(
        broker,
        "keyed",
        2,
        cleanup_policy="compact",
        segment_ms=500,
        segment_bytes=1 << 20,
        min_cleanable_dirty_ratio=0.01,
        max_compaction_lag_ms=1000,
    )
    create(broker, "zipped", 1, compression_type="gzip")
    create(broker, "short", 1, segment_bytes=1 << 20, retention_bytes=1 << 20)
    archive(broker)
    fill(broker, "many", 40_000, 1000, **{"enable.idempotence": True})
    fill(broker, "keyed", 20_000, 100)
    fill(broker, "zipped", 100, 100)
    fill(broker, "short", 4_000, 1000)
    refused = Producer({"bootstrap.servers": broker.bootstrap})
    refused.produce("keyed", b"no key")
    refused.flush(60)
    consume(broker, "g", 20_000)
    with EventsClient(broker.bootstrap) as client:
        client.create_topic("events")
        with client.open_topic("events").producer() as producer:
            producer.push({}, b"data")
        with client.open_topic("events").consumer("e") as consumer:
            consumer.pull(20)
    with subprocess.Popen([sys.executable, "-c", MEMBER, broker.bootstrap], stdout=subprocess.PIPE) as member:
        assert member.stdout.readline() == b"in\n"
        member.kill()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(address(broker))) for _ in range(70)]
        half = crowd[0]
        half.sendall(b"\x00\x00\x10\x00half")
        until(lambda: values(broker)["millstream_net_idle_connections_closed_total"], "no idle connection is closed")
    with socket.create_connection(address(broker)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(1) == b""
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{broker.http}/nowhere", timeout=60)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["short"])["short"].result(60)
    waiting = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "w", "fetch.wait.max.ms": 5000})
    waiting.subscribe(["many"])
    held, archived, greedy = hold(broker), reader_of_archived(broker), throttled(broker)
    patience = Patience()  # the cleaner runs when nobody else does
    dead = {metric.name for metric in (*METRICS, *ASKED)}
    while True:
        seen = values(broker)
        dead -= {
            metric.name
            for metric in (*METRICS, *ASKED)
            if seen.get(metric.exposed_name + ("_count" if metric.kind is Kind.HISTOGRAM else ""))
        }
        if dead <= NOT_HERE.keys():
            break
        patience.check(", ".join(sorted(dead - NOT_HERE.keys())))
        waiting.poll(0.2)
        greedy.poll(0)
        archived.consume(500, 0.2)
        archived.seek(TopicPartition("tiered", 0, 0))
    held.abort_transaction(60)
    greedy.purge()
    waiting.close()
    archived.close()
