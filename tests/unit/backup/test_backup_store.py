"""The objects of backups: content decides their names, and damage is found and named."""

import hashlib
import os
import threading

import msgspec
import pytest

from millstream.backup.batches import checked_batches, empty_batches, placeholder_events, producer_id_of, shifted
from millstream.backup.create import within
from millstream.backup.model import (
    FORMAT,
    Backup,
    GroupBackup,
    GroupOffset,
    PartitionBackup,
    StoredBatches,
    TopicBackup,
    UserBackup,
    decode_backup,
    encode_backup,
)
from millstream.backup.store import BackupStore, records_key
from millstream.backup.verify import verify
from millstream.errors import Corruption, OutcomeUnknown, Rejected
from millstream.format.segment import whole_batches
from millstream.objects import open_store
from millstream.wire.records import batch_crc_ok, build_batch
from waits import until

TOPIC = "ab" * 16


def batch(base, count=3, **named):
    return build_batch([(None, b"v", (), 5)] * count, base_offset=base, **named)


def quiet(done, total):
    assert 0 <= done <= total


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(directory):
    opened = open_store(f"file://{directory}")
    yield BackupStore(opened)
    opened.close()


def backup_of(name, *objects, end=None):
    part = PartitionBackup(0, 0, objects[-1].end_offset if end is None else end, objects=objects)
    return Backup(FORMAT, name, "1", "c", 1, 2, (TopicBackup("t", TOPIC, 1, {}, (part,)),))


def put(store, base, *batches):
    end = base + 3 * len(batches)
    return store.put(TOPIC, 0, base, end, b"".join(batches))[0]


def path_of(directory, one):
    return os.path.join(directory, records_key(TOPIC, 0, one))


def change(path, at, cut=False):
    with open(path, "r+b") as file:
        if cut:
            file.truncate(at)
        else:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))


def test_a_backup_is_there_when_its_root_is(store):
    one = put(store, 0, batch(0))
    assert store.names() == []
    assert store.newest() is None
    store.publish(backup_of("20260101T000000Z", one))
    assert store.newest() == backup_of("20260101T000000Z", one)
    with pytest.raises(Rejected, match="already"):
        store.publish(backup_of("20260101T000000Z", one))
    with pytest.raises(Rejected, match="the newest is 20260101T000000Z"):
        store.read("20250101T000000Z")


def test_the_same_batches_are_written_once(store):
    assert store.put(TOPIC, 0, 0, 3, batch(0))[1]
    assert not store.put(TOPIC, 0, 0, 3, batch(0))[1]
    assert store.put(TOPIC, 0, 0, 3, batch(0, compression=4))[1]


def test_what_is_damaged_is_named(store, directory):
    objects = [put(store, base, batch(base), batch(base + 3)) for base in (0, 6, 12, 18)]
    backup = backup_of("b", *objects)
    assert verify(store, backup, quiet) == (4, 8, [])
    change(path_of(directory, objects[0]), 70)
    change(path_of(directory, objects[1]), 100, cut=True)
    os.remove(path_of(directory, objects[2]))
    found = verify(store, backup, quiet)
    assert [one.rpartition(": ")[2] if "damaged" in one else one.split(": ")[1] for one in found.faults]
    for fault, one, word in zip(found.faults, objects[:3], ("damaged", "truncated", "missing"), strict=True):
        assert fault.startswith(
            f"t-0, offsets {one.base_offset} to {one.end_offset - 1}: the object records/{TOPIC}/0/"
        )
        assert word in fault
    assert found.batches == 2


def test_objects_that_do_not_follow_each_other_are_faults(store):
    first, last = put(store, 0, batch(0)), put(store, 2, batch(2))
    assert "before the end" in verify(store, backup_of("b", first, last), quiet).faults[0]
    assert "the root says 9" in verify(store, backup_of("b", first, end=9), quiet).faults[0]


@pytest.mark.parametrize("at", [0, 40, 65, 200])
def test_a_flipped_bit_of_a_root_is_found(store, at):
    data = bytearray(encode_backup(backup_of("b", put(store, 0, batch(0)))))
    assert decode_backup("b", bytes(data)).name == "b"
    data[at] ^= 1
    with pytest.raises(Corruption, match="root of backup b"):
        decode_backup("b", bytes(data))
    with pytest.raises(Corruption):
        decode_backup("b", bytes(data[:at]))


def test_a_root_of_a_later_release_is_refused():
    document = msgspec.json.encode({"format": FORMAT + 1, "something": "else"})
    data = hashlib.sha256(document).hexdigest().encode() + b"\n" + document
    with pytest.raises(Rejected, match="newer release"):
        decode_backup("b", data)


def test_a_root_keeps_the_starts_of_share_groups_and_one_without_them_can_be_read():
    group = GroupBackup("workers", (GroupOffset("t", 0, 6, ""), GroupOffset("t", 1, -1, "")))
    backup = Backup(FORMAT, "b", "1", "c", 1, 2, (), groups=(GroupBackup("readers", ()),), share_groups=(group,))
    assert decode_backup("b", encode_backup(backup)) == backup
    older = msgspec.to_builtins(backup)
    del older["share_groups"]
    document = msgspec.json.encode(older)
    read = decode_backup("b", hashlib.sha256(document).hexdigest().encode() + b"\n" + document)
    assert read == msgspec.structs.replace(backup, share_groups=())


def test_no_offset_of_a_group_lies_beyond_the_records():
    part = PartitionBackup(0, 2, 10)
    topics = (TopicBackup("t", TOPIC, 1, {}, (part,)),)
    before = [
        GroupBackup("g", tuple(GroupOffset("t", 0, offset, "") for offset in (-1, 1, 10, 12))),
        GroupBackup("gone", (GroupOffset("deleted", 0, 5, ""),)),
    ]
    notes = []
    (kept,) = within(before, topics, "start", notes)
    assert [one.offset for one in kept.offsets] == [-1, 1, 10, 10]
    assert notes == ["group g has start 12 of t-0, which is beyond its end: the backup has 10"]


def test_removing_a_backup_keeps_what_others_refer_to(store):
    shared, old, new = put(store, 0, batch(0)), put(store, 3, batch(3)), put(store, 3, batch(3, compression=3))
    store.publish(backup_of("a", shared, old))
    store.publish(backup_of("b", shared, new))
    store.remove(["a"])
    with store.running():
        assert store.sweep() == 1
    assert store.names() == ["b"]
    assert verify(store, store.read("b"), quiet).faults == []
    with pytest.raises(Corruption, match="missing"):
        store.get(TOPIC, 0, old)


def test_only_backups_of_the_own_cluster_are_too_many(store, directory):
    made = put(store, 0, batch(0))
    for name in "abd":
        store.publish(backup_of(name, made))
    store.publish(msgspec.structs.replace(backup_of("c", made), cluster_id="another"))
    (directory / "backups" / "e.json").write_bytes(b"damaged")
    newest = store.read("d")
    assert store.names() == ["a", "b", "c", "d", "e"]
    assert store.surplus(newest, 1) == ["a", "b"]
    assert store.surplus(newest, 2) == ["a"]
    assert store.surplus(newest, 9) == []
    assert store.surplus(store.read("a"), 1) == ["b"], "a run that ends last does not remove what it has made"


def age(directory, seconds=3600):
    """Let every mark of a run, and the lease of a sweep, be from long ago."""
    for mark in (*directory.glob("running/*"), *directory.glob("sweep/*")):
        then = mark.stat().st_mtime - seconds
        os.utime(mark, (then, then))


@pytest.fixture
def another(directory):
    """The store as another process has it."""
    opened = open_store(f"file://{directory}")
    yield BackupStore(opened)
    opened.close()


def killed_run(store, base):
    """What a run that is killed leaves: its mark, and an object without a root."""
    running = store.running()
    running.__enter__()
    return running, put(store, base, batch(base))


def test_what_killed_runs_left_is_removed_and_what_a_root_has_is_kept(store, another, directory):
    kept = put(store, 0, batch(0))
    store.publish(backup_of("a", kept))
    _running, left = killed_run(another, 10)
    age(directory)
    with store.running():
        fresh = put(store, 20, batch(20))
        store.publish(backup_of("b", kept, fresh))
        assert store.sweep() == 1
        assert len(list(directory.glob("running/*"))) == 1
    assert not os.path.exists(path_of(directory, left))
    assert os.path.exists(path_of(directory, kept)) and os.path.exists(path_of(directory, fresh))
    assert not list(directory.glob("running/*"))


def test_a_run_that_may_be_writing_keeps_its_objects(store, another, directory):
    running, left = killed_run(another, 10)
    with store.running():
        assert store.sweep() is None
    assert os.path.exists(path_of(directory, left))
    running.__exit__(None, None, None)
    with store.running():
        assert store.sweep() == 1


def test_a_run_reuses_what_a_removed_backup_had(store, another, directory):
    """The run beside it has an older backup's object from before it was removed."""
    store.publish(backup_of("a", put(store, 0, batch(0))))
    with another.running():
        found, written = another.put(TOPIC, 0, 0, 3, batch(0))
        assert not written
        with store.running():
            store.publish(backup_of("b", put(store, 0, batch(0, compression=3))))
            store.remove(["a"])
            assert store.sweep() is None
        another.publish(backup_of("c", found))
    assert verify(store, store.read("c"), quiet).faults == []
    with store.running():
        assert store.sweep() == 0


def test_a_run_that_was_paused_publishes_nothing_after_a_sweep(store, another, directory):
    _running, left = killed_run(another, 10)
    age(directory)
    with store.running():
        assert store.sweep() == 1
    assert not os.path.exists(path_of(directory, left))
    with pytest.raises(Rejected, match="stood still"):
        another.publish(backup_of("b", left))
    assert store.names() == []


def test_a_root_that_was_written_after_a_sweep_is_taken_back(store, another, directory, monkeypatch):
    _running, left = killed_run(another, 10)
    holds = another._hold

    def paused_here():
        monkeypatch.setattr(another, "_hold", holds)
        holds()
        age(directory)
        with store.running():
            assert store.sweep() == 1
        put(another, 10, batch(10))  # what is missing is found otherwise

    monkeypatch.setattr(another, "_hold", paused_here)
    with pytest.raises(Rejected, match="stood still"):
        another.publish(backup_of("b", left))
    assert store.names() == []


def test_a_root_without_its_objects_is_not_written(store, directory):
    one, two = put(store, 0, batch(0)), put(store, 3, batch(3))
    os.remove(path_of(directory, two))
    with pytest.raises(Corruption, match="has lost 1 objects of this run"):
        store.publish(backup_of("b", one, two))
    assert store.names() == []


def held_sweep(store):
    """A sweep that stops before it removes anything: its run, and the right to remove."""
    running = store.running()
    running.__enter__()
    removing = store._runs.removing(store._run)
    return running, removing, removing.__enter__()


def test_a_run_waits_for_a_sweep_and_two_sweeps_do_not_meet(store, another, directory):
    running, removing, right = held_sweep(store)
    assert right is not None
    started = threading.Event()

    def run():
        with another.running():
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(list(directory.glob("running/*"))) == 2)
    assert not started.wait(0.5)
    removing.__exit__(None, None, None)
    until(started.is_set)
    thread.join()
    running.__exit__(None, None, None)


def test_a_sweep_that_was_killed_holds_up_no_run_for_good_and_a_paused_one_stops(store, another, directory):
    _running, _removing, right = held_sweep(store)
    age(directory)
    with another.running():
        assert right.still()
        assert not right.renew()
        assert not right.still()
        assert another.sweep() == 0


def test_a_damaged_root_keeps_everything(store, directory):
    left = put(store, 10, batch(10))
    store.publish(backup_of("a", put(store, 0, batch(0))))
    change(directory / "backups" / "a.json", 90)
    with store.running(), pytest.raises(Corruption):
        store.sweep()
    assert os.path.exists(path_of(directory, left))
    with store.running(), pytest.raises(Corruption):
        store.sweep()  # the lease is free again


def test_a_mark_is_renewed_while_a_run_is_made(store, directory, monkeypatch):
    monkeypatch.setattr("millstream.backup.runs.RENEW_S", 0.01)
    with store.running():
        (mark,) = (directory / "running").iterdir()
        age(directory)
        old = mark.stat().st_mtime
        until(lambda: mark.stat().st_mtime > old, "a renewed mark")


def test_a_renewal_whose_answer_was_lost_is_none_that_is_lost(store, monkeypatch):
    with store.running():
        run, inner = store._run, store._store
        put_there = inner.put

        def lose(key, parts, expect=None):
            put_there(key, parts, expect)
            raise OutcomeUnknown("no answer")

        monkeypatch.setattr(inner, "put", lose)
        assert run.renew()
        monkeypatch.setattr(inner, "put", put_there)
        assert run.renew()


def test_verifiers_are_in_no_repr():
    assert repr(UserBackup("u", 1, 4096, b"salt", b"stored", b"server")) == "UserBackup(u)"


@pytest.mark.parametrize(("base", "end"), [(0, 1), (5, 1000), (0, 5 * (1 << 31))])
def test_empty_batches_have_the_offsets_that_are_wanted(base, end):
    at = base
    for data in empty_batches(base, end):
        (one,) = whole_batches(data)
        assert one.base_offset == at
        assert one.records == 0
        assert batch_crc_ok(data)
        at = one.last_offset + 1
    assert at == end


def test_events_that_stand_for_deleted_ones_are_dense():
    at = 3
    for data in placeholder_events(3, 25_000):
        (one,) = whole_batches(data)
        assert (one.base_offset, one.records) == (at, one.last_offset - one.base_offset + 1)
        assert batch_crc_ok(data)
        at = one.last_offset + 1
    assert at == 25_000


def test_a_producer_gets_another_id_and_the_batch_its_checksum():
    view = memoryview(batch(0, producer_id=7, producer_epoch=1, base_sequence=0))
    moved = shifted(view, 1000)
    assert producer_id_of(moved) == 1007
    assert batch_crc_ok(moved)
    assert moved[51:] == view[51:]
    assert shifted(view, 0) is view
    nobody = memoryview(batch(0))
    assert shifted(nobody, 1000) is nobody


def test_batches_are_what_the_root_says_of_them():
    data = memoryview(batch(4) + batch(9))
    said = StoredBatches(4, 12, len(data), "")
    assert [one.base_offset for one, _ in checked_batches("it", data, said)] == [4, 9]
    for wrong in (StoredBatches(5, 12, 1, ""), StoredBatches(4, 13, 1, ""), StoredBatches(3, 12, 1, "")):
        with pytest.raises(Corruption, match="it: "):
            list(checked_batches("it", data, wrong))
    with pytest.raises(Corruption, match="no batch at byte"):
        list(checked_batches("it", data[:-1], said))
