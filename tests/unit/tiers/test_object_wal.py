"""The log in the store: what was acknowledged is in what its taker reads, whoever was faster."""

import random

import pytest

from millstream.errors import Corruption, OutcomeUnknown, Rejected
from millstream.format.sealed import unseal
from millstream.model.shared import Writer
from millstream.objects import ObjectKey
from millstream.tiers.object_wal import (
    ENTRY_MAGIC,
    VERSION,
    ObjectWal,
    close_log,
    entry_key,
    remove_entries,
    wal_folder,
)
from sim.engine.objects import CONFLICT, ERROR, LOST_ANSWER, Faults, FaultyStore, MemoryStore

WRITER = Writer(1, 5)


def seal(store, writer):
    """End the log; its entries."""
    folder = wal_folder(writer)
    keys = [entry_key(folder, number) for number in close_log(store, folder)]
    return [bytes(unseal(ENTRY_MAGIC, VERSION, store.get(key, 0, store.head(key).size_bytes))) for key in keys]


@pytest.fixture
def store():
    return FaultyStore(MemoryStore(), random.Random(1), Faults())


def test_a_sealed_log_gives_its_entries_and_takes_no_more(store):
    wal = ObjectWal(store, WRITER)
    assert [wal.append(b"a"), wal.append(b"b")] == [0, 1]
    assert seal(store, WRITER) == [b"a", b"b"]
    with pytest.raises(Rejected, match="sealed"):
        wal.append(b"c")
    assert seal(store, WRITER) == [b"a", b"b"]


def test_an_empty_log_can_be_sealed(store):
    assert seal(store, WRITER) == []
    with pytest.raises(Rejected, match="sealed"):
        ObjectWal(store, WRITER).append(b"a")


def test_another_life_has_another_log(store):
    ObjectWal(store, WRITER).append(b"a")
    assert seal(store, Writer(1, 6)) == []


@pytest.mark.parametrize("fault", [ERROR, LOST_ANSWER, CONFLICT])
def test_an_append_is_repeated_until_the_store_has_it_once(store, fault):
    wal = ObjectWal(store, WRITER)
    store.script.append(fault)
    wal.append(b"a")
    wal.append(b"b")
    assert seal(store, WRITER) == [b"a", b"b"]


def test_an_append_without_an_answer_is_of_unknown_outcome(store):
    wal = ObjectWal(store, WRITER)
    store.script.extend([ERROR] * 5)
    with pytest.raises(OutcomeUnknown):
        wal.append(b"a")


def test_the_seal_and_an_append_of_the_same_number_have_one_winner(store):
    wal = ObjectWal(store, WRITER)
    wal.append(b"a")
    raced = store.list
    done = []

    def list_and_let_the_broker_write(folder="", after=""):
        found = list(raced(folder, after))
        if not done:
            done.append(wal.append(b"late"))
        return iter(found)

    store.list = list_and_let_the_broker_write
    assert seal(store, WRITER) == [b"a", b"late"]
    with pytest.raises(Rejected, match="sealed"):
        wal.append(b"too late")


def test_a_log_whose_oldest_entries_are_removed_ends_after_its_newest(store):
    wal = ObjectWal(store, WRITER)
    for at in range(4):
        wal.append(bytes([at]))
    remove_entries(store, wal_folder(WRITER), [0, 1, 2])
    assert seal(store, WRITER) == [bytes([3])]
    with pytest.raises(Rejected, match="sealed"):
        wal.append(b"x")


def test_a_missing_or_damaged_entry_is_corruption(store):
    wal = ObjectWal(store, WRITER)
    for at in range(3):
        wal.append(bytes([at]))
    keys = [info.key for info in store.list(wal_folder(WRITER))]
    store.put(ObjectKey(keys[2]), [b"not an entry, but long enough"])
    with pytest.raises(Corruption):
        seal(store, WRITER)
    store.delete([keys[1]])
    with pytest.raises(Corruption, match="missing"):
        seal(store, WRITER)
