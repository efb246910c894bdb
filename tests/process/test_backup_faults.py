"""Backups through kill -9, damaged objects, and clusters that are not as they should be."""

import json
import os

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
    killed_at,
    produce,
    transactions,
)

from millstream.backup.model import GroupBackup, GroupOffset
from millstream.backup.source import Source
from millstream.backup.target import Target
from millstream.testing.process import Broker
from millstream.testing.stem import run_command
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.ci, pytest.mark.timeout(900)]

VALUES = [f"value-{number}" for number in range(100)]
STARTS = [GroupBackup(name, (GroupOffset("plain", 1, start, ""),)) for name, start in (("s1", 7), ("s2", -1))]
"""Share groups."""

CREATE_PHASES = (
    "millstream.backup.source:Source:groups:0",
    "millstream.backup.source:Source:users:0",
    "millstream.backup.store:BackupStore:put:0",
    "millstream.backup.store:BackupStore:put:2",
    "millstream.objects.local:LocalStore:put:1",
    "millstream.backup.store:BackupStore:publish:0",
)
RESTORE_PHASES = (
    "millstream.backup.target:Target:reserve_producer_ids:0",
    "millstream.backup.target:Target:create_topic:0",
    "millstream.backup.target:Target:create_topic:1",
    "millstream.backup.target:Target:append:0",
    "millstream.backup.target:Target:append:3",
    "millstream.backup.target:Target:delete_before:0",
    "millstream.backup.target:Target:abort_open:0",
    "millstream.backup.target:Target:alter_topic:0",
    "millstream.backup.target:Target:commit:0",
    "millstream.backup.target:Target:start_share_group:0",
    "millstream.backup.target:Target:start_share_group:1",
    "millstream.backup.target:Target:add_acls:0",
    "millstream.backup.target:Target:set_users:0",
    "millstream.backup.target:Target:delete_topic:0",
)


def filled(broker):
    create(broker, "plain", 4)
    create(broker, "trimmed")
    create(broker, "many")
    for partition in range(4):
        produce(broker, "plain", VALUES, partition)
    produce(broker, "trimmed", VALUES)
    delete_before(broker, "trimmed", 0, 10)
    transactions(broker, "many", ["abort", "open", "commit"])
    commit(broker, "g", {("plain", 3): (40, "")})


def all_of(broker):
    return [history(broker, "plain", partition) for partition in range(4)] + [history(broker, "trimmed")]


def expire(store):
    """Let marks and lease of runs that were killed be from long ago."""
    for mark in (*store.glob("running/*"), *store.glob("sweep/*")):
        os.utime(mark, (0, 0))


def test_kills_in_every_phase(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker(shards=1) as broker:
        filled(broker)
        with cluster_of(broker) as cluster:
            for group in STARTS:
                Target(cluster).start_share_group(group)
        words = ("backup", "create", "--to", store, "--bootstrap", broker.bootstrap)
        for place in CREATE_PHASES:
            assert killed_at(place, *words), f"{place} was not reached"
            assert command("list", "--from", store)["backups"] == [], f"a backup after a kill at {place}"
        command(*words[1:])
        assert command("verify", "--from", store)["faults"] == []
        before, many = all_of(broker), history(broker, "many")
        assert killed_at("millstream.backup.store:BackupStore:remove:0", *words, "--keep", "1")
        orphan = tmp_path / "store" / "records" / "0" / "0" / "left-by-a-killed-run"
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"x")
        command("create", "--to", store, "--keep", "1", "--bootstrap", broker.bootstrap)
        assert orphan.exists(), "the run that was killed may go on for all that is known"
        expire(tmp_path / "store")
        assert killed_at("millstream.backup.runs:Held:still:0", *words, "--keep", "1"), "a sweep with its lease"
        assert orphan.exists()
        expire(tmp_path / "store")
        command("create", "--to", store, "--keep", "1", "--bootstrap", broker.bootstrap)
        assert not orphan.exists()
        assert len(command("list", "--from", store)["backups"]) == 1
        assert command("verify", "--from", store)["faults"] == []
    with Broker(shards=2) as other:
        words = ("backup", "restore", "--from", store, "--bootstrap", other.bootstrap)
        for place in RESTORE_PHASES:
            assert killed_at(place, *words), f"{place} was not reached"
        half = f"file://{tmp_path}/half"
        refused = command("create", "--to", half, "--bootstrap", other.bootstrap, expect=1)
        assert "is being restored into this cluster" in refused
        with Broker(shards=1) as third:
            command("create", "--to", half, "--bootstrap", third.bootstrap)
        refused = command("restore", "--from", half, "--bootstrap", other.bootstrap, expect=1)
        assert "was started in this cluster" in refused
        command(*words[1:])
        assert all_of(other) == before
        assert not many, "the open transaction hides what was committed behind it"
        assert [one.value for one in history(other, "many")] == [b"commit-2-%d" % number for number in range(5)]
        assert ends(other, "trimmed") == [(10, 100)]
        assert committed(other, "g", [("plain", 3)]) == {("plain", 3): (40, "")}
        with cluster_of(other) as cluster:
            assert Source(cluster).groups()[1] == STARTS
        again = command(*words[1:], expect=1)
        assert "the cluster has topics" in again


def test_a_new_data_directory_is_finished_after_a_kill(tmp_path):
    store, new = f"file://{tmp_path}/store", tmp_path / "new"
    with Broker({"t": 2}, shards=1) as broker:
        for partition in range(2):
            produce(broker, "t", VALUES, partition)
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
        before = [history(broker, "t", partition) for partition in range(2)]
    words = ("backup", "restore", "--from", store, "--into", str(new))
    assert killed_at("millstream.backup.target:Target:append:1", *words)
    said = []

    def finished():
        """The broker of the first run may still have to stop."""
        done = run_command(*words)
        said.append(done.stderr)
        return done.returncode == 0

    until(finished, lambda: said)
    with Broker(data_dir=new, shards=2) as other:
        assert [history(other, "t", partition) for partition in range(2)] == before
    assert "the cluster has topics" in command(*words[1:], expect=1)


def test_a_restore_does_not_mix_with_other_records(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker({"t": 1}, shards=1) as broker:
        produce(broker, "t", VALUES)
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
    with Broker(shards=1) as other:
        words = ("restore", "--from", store, "--bootstrap", other.bootstrap)
        assert killed_at("millstream.backup.target:Target:append:0", "backup", *words)
        produce(other, "t", VALUES * 2)
        assert "has records that are not from the backup" in command(*words, expect=1)


def test_damage_is_found_and_named_and_never_restored(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker({"t": 2}, shards=1) as broker:
        for partition in range(2):
            produce(broker, "t", VALUES, partition)
        made = command("create", "--to", store, "--bootstrap", broker.bootstrap)
    paths = sorted((tmp_path / "store" / "records").rglob("0*-*"))
    assert len(paths) == 2
    assert command("drill", "--from", store, "--directory", tmp_path)["differences"] == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith("millstream-drill-")], "a drill leaves nothing"

    good = paths[0].read_bytes()
    for data, word in ((good[:500] + bytes([good[500] ^ 1]) + good[501:], "damaged"), (good[:-9], "truncated")):
        paths[0].write_bytes(data)
        found = verified(store)
        assert len(found["faults"]) == 1 and word in found["faults"][0] and paths[0].name in found["faults"][0]
        failed = command("drill", "--from", store, "--directory", tmp_path, expect=1)
        assert word in failed and paths[0].name in failed
    paths[0].write_bytes(good)

    root = tmp_path / "store" / "backups" / f"{made['name']}.json"
    data = root.read_bytes()
    root.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    assert f"the root of backup {made['name']} is damaged" in command(
        "restore", "--from", store, "--into", tmp_path / "d", expect=1
    )
    root.write_bytes(data)
    assert "hours old" in command("drill", "--from", store, "--max-age", "0", expect=1)


def verified(store):
    """What ``verify --json`` prints when it fails."""
    done = run_command("backup", "verify", "--from", store, "--json")
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    return json.loads(done.stdout)


def test_a_full_backup_mends_what_the_cluster_still_has(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker({"t": 1}, shards=1) as broker:
        words = ("create", "--to", store, "--bootstrap", broker.bootstrap)
        produce(broker, "t", VALUES)
        first = command(*words)
        (path,) = (tmp_path / "store" / "records").rglob("0*-*")
        path.write_bytes(path.read_bytes()[:-1])
        produce(broker, "t", ["more"])
        command(*words)
        assert len(verified(store)["faults"]) == 1, "what the first one has is referred to, and not read"
        command(*words, "--full")
        assert command("verify", "--from", store)["faults"] == []
        root = tmp_path / "store" / "backups" / f"{command('list', '--from', store)['backups'][-1]['name']}.json"
        root.write_bytes(b"nonsense")
        made = command(*words)
        assert any("is damaged" in note for note in made["notes"])
        assert made["written_bytes"] == 0 and made["bytes"] > first["bytes"]


def test_a_topic_that_is_made_again_is_read_from_its_start(tmp_path):
    store = f"file://{tmp_path}/store"
    with Broker({"t": 1}, shards=1) as broker:
        produce(broker, "t", VALUES)
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
        client = admin(broker)
        client.delete_topics(["t"])["t"].result(60)
        create(broker, "t")
        produce(broker, "t", VALUES[::-1])
        before = history(broker, "t")
        command("create", "--to", store, "--bootstrap", broker.bootstrap)
    with Broker(shards=1) as other:
        command("restore", "--from", store, "--bootstrap", other.bootstrap)
        assert history(other, "t") == before


def test_what_is_no_store_or_has_no_backup_is_said(tmp_path):
    assert "has no backup" in command("verify", "--from", f"file://{tmp_path}/empty", expect=1)
    assert "expected" in command("list", "--from", "ftp://somewhere", expect=2)
    assert "no broker" in command("create", "--to", f"file://{tmp_path}/s", "--bootstrap", "127.0.0.1:1", expect=1)
