"""Backups of what is not plain: users and rights, schemas, events, compacted, tiered and replicated topics."""

import json
import threading
from contextlib import closing

import pytest
from backup_support import (
    admin,
    cluster_of,
    command,
    commit,
    committed,
    create,
    delete_before,
    ends,
    history,
    produce,
)
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from share_member import ACCEPT, PARTITIONS, Member
from tiering import AT_ONCE, TIERED

from buckets import moto
from millstream.backup.compare import compare
from millstream.backup.model import GroupBackup, GroupOffset
from millstream.backup.source import Source
from millstream.backup.store import BackupStore
from millstream.backup.target import Target
from millstream.client import Cluster
from millstream.client.security import read_security
from millstream.config.properties.access import STANDARD_AUTHORIZER
from millstream.errors import Rejected
from millstream.events import EventsClient
from millstream.objects import open_store
from millstream.testing.clusters import cluster as cluster_of_brokers
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from waits import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

PASSWORD = "a-word-for-carol-7781"


def cli(*words, stdin="", expect=0):
    done = run_command(*words, stdin=stdin)
    assert done.returncode == expect, (words, done.stdout, done.stderr)
    assert PASSWORD not in done.stdout + done.stderr
    return done


def sees(broker, password):
    """The topics that carol sees."""
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "carol",
        "sasl.password": password,
    }
    with Cluster(broker.bootstrap, timeout_s=60, security=read_security(login)) as cluster:
        return sorted(cluster.metadata().topics)


def test_users_log_in_and_rights_quotas_schemas_and_settings_are_there_again(tmp_path):
    store = f"file://{tmp_path}/store"
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    (tmp_path / "one.avsc").write_text(json.dumps({"type": "record", "name": "One", "fields": []}))
    with Broker({"orders": 1}, settings, shards=1) as broker:
        here = ("--data", broker.data_dir)
        cli("user", "create", "carol", "--password-file", "-", *here, stdin=f"{PASSWORD}\n")
        cli(
            "user",
            "alter",
            "carol",
            "--mechanism",
            "SCRAM-SHA-256",
            "--password-file",
            "-",
            *here,
            stdin=f"{PASSWORD}\n",
        )
        cli("acl", "create", "User:carol", "read", "describe", "--topic", "ord", "--prefixed", *here)
        cli("acl", "create", "User:eve", "all", "--cluster", "--deny", *here)
        cli("quota", "create", "--user", "carol", "--producer-byte-rate", "12345", *here)
        cli("schema", "register", "orders-value", tmp_path / "one.avsc", "--registry", broker.http)
        cli("config", "set", "log.cleaner.backoff.ms=12345", "--bootstrap", broker.bootstrap)
        produce(broker, "orders", ["one", "two"])
        made = command("create", "--to", store, *here)
        assert made["users"] == ["carol"] and made["acls"] == 3 and made["quotas"] == 1
        with cluster_of(broker) as cluster:
            quotas, resources = Source(cluster).quotas(), Source(cluster).resources()
        rights = cli("acl", "list", "--json", *here).stdout
        schemas = cli("schema", "list", "--json", "--registry", broker.http).stdout
    assert resources
    with open(next((tmp_path / "store" / "backups").iterdir()), "rb") as root:
        assert PASSWORD.encode() not in root.read()
    restored = tmp_path / "data"
    command("restore", "--from", store, "--into", restored)
    with Broker(None, settings, data_dir=restored, shards=2, listen="SASL_PLAINTEXT://127.0.0.1:0") as other:
        here = ("--data", restored)
        assert sees(other, PASSWORD) == ["orders"], "those that she may see"
        with pytest.raises(Rejected):
            sees(other, "another")
        assert cli("acl", "list", "--json", *here).stdout == rights
        assert command("create", "--to", f"file://{tmp_path}/again", *here)["users"] == ["carol"]
        again = cli("quota", "list", "--json", *here).stdout
        assert "12345" in again and quotas
    with Broker(None, settings, data_dir=restored, shards=2) as other:
        assert cli("schema", "list", "--json", "--registry", other.http).stdout == schemas
        with cluster_of(other) as cluster:
            assert Source(cluster).resources() == resources


def test_events_are_restored_with_their_data_and_ids(tmp_path):
    store = f"file://{tmp_path}/store"

    def event(number):
        return {"n": number}, bytes([number % 251]) * (number % 3000)

    def pull(broker, name, count):
        with EventsClient(broker.bootstrap) as client, client.open_topic("e").consumer(name) as consumer:
            found = [consumer.pull(PATIENCE_S) for _ in range(count)]
        return sorted((one.partition, one.id, json.dumps(one.metadata), b"".join(one.data)) for one in found)

    with Broker(shards=2) as broker:
        create(broker, "e", 2, topic_kind="events", retention_ms=-1)
        with EventsClient(broker.bootstrap) as client, client.open_topic("e").producer(batch_size=7) as producer:
            for one in [producer.push(*event(number)) for number in range(300)]:
                one.result(PATIENCE_S)
        delete_before(broker, "e", 0, 20)
        before = pull(broker, "looks", 280)
        spans = ends(broker, "e", 2)
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
        with EventsClient(broker.bootstrap) as client:
            topic = client.open_topic("e")
            with topic.producer(batch_size=7) as producer:
                producer.push({"n": "last"}, b"more").result(PATIENCE_S)
        made = command("create", "--to", store, "--bootstrap", broker.bootstrap)
        assert 0 < made["written_bytes"] < 500
    with Broker(shards=1) as other:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        after = pull(other, "looks-too", 281)
        assert set(before) < set(after)
        assert [one[2:] for one in set(after) - set(before)] == [(json.dumps({"n": "last"}), b"more")]
        assert ends(other, "e", 2)[0][0] == spans[0][0] == 20
        with EventsClient(other.bootstrap) as client, client.open_topic("e").producer() as producer:
            assert producer.push({"n": "new"}, b"").result(PATIENCE_S) >= 20
    assert command("drill", "--from", store, "--directory", tmp_path)["differences"] == []


def test_a_compacted_topic_keeps_its_offsets_and_gaps(tmp_path):
    store = f"file://{tmp_path}/store"
    soon = {
        "segment_ms": 60,
        "min_cleanable_dirty_ratio": 0.001,
        "delete_retention_ms": 60,
        "file_delete_delay_ms": 100,
    }
    with Broker(settings={"log.cleaner.backoff.ms": 30}, shards=1) as broker:
        create(broker, "c", cleanup_policy="compact", **soon)
        for turn in range(6):
            produce(broker, "c", [f"{turn}-{number}" for number in range(40)], **{"batch.num.messages": 5})

        def compacted():
            produce(broker, "c", ["roll-0"])
            return len(history(broker, "c")) < 150

        until(compacted, "nothing was compacted")
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
        produce(broker, "c", ["later-7"])
        made = command("create", "--to", store, "--bootstrap", broker.bootstrap)
        newest, spans = history(broker, "c"), ends(broker, "c")
    assert made["offsets"] == spans[0][1] - spans[0][0]
    with Broker(settings={"log.cleaner.backoff.ms": 3_600_000}, shards=1) as other:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        after = history(other, "c")
        assert ends(other, "c") == spans
        assert {one.key: one for one in after} == {one.key: one for one in newest}, "the last record of each key"
        offsets = [one.offset for one in after]
        assert offsets == sorted(offsets) and len(offsets) < offsets[-1], "offsets are kept, with their gaps"
        produce(other, "c", ["new-1"])
        assert history(other, "c")[-1].offset == spans[0][1]
    assert command("drill", "--from", store, "--directory", tmp_path)["differences"] == []


def test_three_brokers_are_restored_to_one_and_one_to_three(tmp_path):
    store, again = f"file://{tmp_path}/store", f"file://{tmp_path}/again"
    values = [f"v-{number}" for number in range(200)]
    with cluster_of_brokers(3) as three:
        one = three.brokers[1]
        create(one, "r", 3, replication=3, min_insync_replicas=2)
        for partition in range(3):
            produce(one, "r", values, partition)
        commit(one, "g", {("r", 2): (150, "")})
        starts = [GroupBackup(f"s{number}", (GroupOffset("r", number % 3, 42, ""),)) for number in range(6)]
        with cluster_of(one) as cluster:
            for group in starts:
                Target(cluster).start_share_group(group)
        made = command("create", "--to", store, "--bootstrap", three.bootstrap)
        before = [history(one, "r", partition) for partition in range(3)]
        assert made["offsets"] == 600
    with Broker(shards=2) as single:
        notes = command("restore", "--from", store, "--bootstrap", single.bootstrap)["notes"]
        assert "topic r had 3 replicas and has 1" in notes
        assert [history(single, "r", partition) for partition in range(3)] == before
        assert committed(single, "g", [("r", 2)]) == {("r", 2): (150, "")}
        delete_before(single, "r", 0, 50)
        command("create", "--to", again, "--bootstrap", single.bootstrap)
    with cluster_of_brokers(3, {"default.replication.factor": 3}) as three:
        command("restore", "--from", again, "--bootstrap", three.bootstrap)
        assert [history(three.brokers[2], "r", partition) for partition in range(3)] == [before[0][50:], *before[1:]]
        with cluster_of(three.brokers[3]) as cluster:
            assert Source(cluster).groups()[1] == starts


def test_a_tiered_topic_is_copied_and_restored_without_its_bucket(tmp_path):
    store = f"file://{tmp_path}/store"
    values = [f"v-{number}" * 20 for number in range(2000)]
    with Broker(settings=AT_ONCE, shards=1) as broker:
        create(broker, "t", **{name.replace(".", "_"): value for name, value in TIERED.items()})
        produce(broker, "t", values, **{"batch.num.messages": 20})
        before = history(broker, "t")
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
    with Broker(settings=AT_ONCE, shards=1) as other:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        assert history(other, "t") == before
        client = admin(other)
        resource = ConfigResource(ResourceType.TOPIC, "t")
        found = client.describe_configs([resource])[resource].result(60)
        assert found["storage.mode"].value == "tiered"


def test_a_shared_topic_is_copied_and_restored_to_another_store(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker(settings={"objects.url": f"file://{tmp_path}/one"}, shards=1) as broker:
        create(broker, "s", 2, storage_mode="shared", retention_ms=-1)
        produce(broker, "s", [f"v-{number}" for number in range(500)], 0, **{"batch.num.messages": 50})
        delete_before(broker, "s", 0, 120)
        produce(broker, "s", ["one"], 1)
        before = [history(broker, "s", index) for index in range(2)]
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
    with Broker(settings={"objects.url": f"file://{tmp_path}/other"}, shards=1) as other:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        assert [history(other, "s", index) for index in range(2)] == before
        assert ends(other, "s", 2) == [(120, 500), (0, 1)]
        other.kill()
        other.start()
        assert [history(other, "s", index) for index in range(2)] == before
    assert command("drill", "--from", store, "--directory", tmp_path)["differences"] == []
    assert "--set objects.url" in command("restore", "--from", store, "--into", tmp_path / "new", expect=1)


def set_group(broker, group, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    client = admin(broker)
    client.incremental_alter_configs([resource])[resource].result(60)


def take(member, count):
    """Partition → offsets of so many records that a member takes."""
    taken = {}

    def enough():
        for index, first, last, _ in member.fetch():
            taken.setdefault(index, []).extend(range(first, last + 1))
        return sum(map(len, taken.values())) >= count

    until(enough, "the records do not come")
    return {index: sorted(offsets) for index, offsets in taken.items()}


def test_a_share_group_goes_on_at_its_starts(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker(shards=1) as broker:
        create(broker, "t", PARTITIONS)
        set_group(broker, "g", "share.auto.offset.reset", "earliest")
        set_group(broker, "readers", "consumer.session.timeout.ms", "50000")
        for partition in range(3):
            produce(broker, "t", [f"{partition}-{number}" for number in range(10)], partition)
        member = Member(broker, "a" * 22).join()
        assert take(member, 30) == {index: list(range(10)) for index in range(3)}
        said = [(0, 0, 5, 1), (1, 0, 9, 1), (2, 4, 9, 1)]  # partition 3 has no record; the rest stays acquired
        assert member.say(said, ACCEPT) == {0}
        made = command("create", "--to", store, "--bootstrap", broker.bootstrap)
        assert (made["groups"], made["share_groups"]) == (0, 1)
        assert made["notes"] == ["access is not controlled in this cluster, so no access control entry is read"]
        assert member.say([(0, 6, 9, 1)], ACCEPT) == {0}, "the backup has not disturbed the member"
        member.line.sock.close()
        with cluster_of(broker) as cluster:
            resources = Source(cluster).resources()
    starts = GroupBackup("g", tuple(GroupOffset("t", index, at, "") for index, at in enumerate((6, 10, 0, -1))))
    assert {one.name: one.configs for one in resources} == {
        "g": {"share.auto.offset.reset": "earliest"},
        "readers": {"consumer.session.timeout.ms": "50000"},
    }
    with Broker(shards=2) as other, cluster_of(other) as cluster, closing(open_store(store)) as objects:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        assert Source(cluster).groups() == ([], [starts])
        assert Source(cluster).resources() == resources
        backups = BackupStore(objects)

        def differences():
            return compare(cluster, backups, backups.newest(), 0, lambda done, total: None).differences

        assert differences() == []
        Target(cluster).start_share_group(GroupBackup("g", (GroupOffset("t", 1, 3, ""),)))
        set_group(other, "readers", "consumer.session.timeout.ms", "51000")
        assert differences() == [
            "share group g has other starts than in the backup",
            "group readers has other settings than in the backup",
        ]
        Target(cluster).start_share_group(starts)
        for partition in (1, 3):
            produce(other, "t", ["new"], partition)
        member = Member(other, "b" * 22).join()
        assert take(member, 16) == {0: [6, 7, 8, 9], 1: [10], 2: list(range(10)), 3: [0]}
        member.line.sock.close()
    assert command("drill", "--from", store, "--directory", tmp_path)["differences"] == []


def test_a_bucket_has_backups_as_a_directory_has(tmp_path, monkeypatch):
    with moto() as url, Broker({"t": 1}, shards=1) as broker:
        keys = {"AWS_ACCESS_KEY_ID": "key-one", "AWS_SECRET_ACCESS_KEY": "secret-two", "AWS_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        produce(broker, "t", [f"v-{number}" for number in range(100)])
        made = command("create", "--to", "s3://lake/backups", "--bootstrap", broker.bootstrap)
        assert command("create", "--to", "s3://lake/backups", "--bootstrap", broker.bootstrap)["written_bytes"] == 0
        assert command("verify", made["name"], "--from", "s3://lake/backups")["faults"] == []
        assert command("drill", "--from", "s3://lake/backups", "--directory", tmp_path)["differences"] == []


def test_a_backup_beside_producers_and_consumers_is_consistent(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker({"busy": 2}, shards=2) as broker:
        stop = threading.Event()
        produce(broker, "busy", ["first"])

        def writes():
            number = 0
            while not stop.is_set():
                produce(broker, "busy", [f"{number}-{one}" for one in range(100)], number % 2)
                number += 1
                commit(
                    broker,
                    "reads",
                    {("busy", index): (end, "") for index, (_, end) in enumerate(ends(broker, "busy", 2))},
                )

        writer = threading.Thread(target=writes)
        writer.start()
        try:
            for _ in range(4):
                until(lambda: ends(broker, "busy", 2)[1][1] > 0, "nothing is written")
                made = command("create", "--to", store, "--bootstrap", broker.bootstrap)
                assert made["notes"] == ["access is not controlled in this cluster, so no access control entry is read"]
        finally:
            stop.set()
            writer.join()
        whole = [history(broker, "busy", index) for index in range(2)]
    with Broker(shards=1) as other:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        spans = ends(other, "busy", 2)
        for index, (start, end) in enumerate(spans):
            assert history(other, "busy", index) == [one for one in whole[index] if start <= one.offset < end]
        for (_, index), (offset, _) in committed(other, "reads", [("busy", 0), ("busy", 1)]).items():
            assert 0 < offset <= spans[index][1]
