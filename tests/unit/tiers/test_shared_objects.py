"""Shared objects in a store: written once, and counted only when they were read back."""

import random

import pytest

from millstream.errors import Corruption, OutcomeUnknown, Rejected
from millstream.format.shared_object import BlockBytes, encode_object, shared_key
from millstream.model.shared import SharedPartition
from millstream.objects import ObjectKey
from millstream.tiers.shared_objects import (
    read_block,
    read_index,
    store_object,
    verify_object,
)
from sim.engine.objects import CONFLICT, LOST_ANSWER, Faults, FaultyStore, MemoryStore

A = SharedPartition(bytes(16), 0)
KEY = ObjectKey(shared_key(9))


def encoded(data=b"records"):
    return encode_object(9, [BlockBytes(A, 0, 4, 0, data)])


@pytest.fixture
def store():
    return FaultyStore(MemoryStore(), random.Random(1), Faults())


def test_an_object_is_read_back_and_read(store):
    store_object(store, encoded())
    verify_object(store, encoded())
    index = read_index(store, 9)
    assert bytes(read_block(store, 9, index.find(A, 3))) == b"records"
    assert index.find(A, 4) is None


def test_a_write_whose_answer_was_lost_is_repeated_and_changes_nothing(store):
    store.script.append(LOST_ANSWER)
    with pytest.raises(OutcomeUnknown):
        store_object(store, encoded())
    before = store.head(KEY).version
    store_object(store, encoded())
    verify_object(store, encoded())
    assert store.head(KEY).version == before


def test_a_conflict_without_an_object_is_of_unknown_outcome(store):
    store.script.append(CONFLICT)
    with pytest.raises(OutcomeUnknown):
        store_object(store, encoded())


def test_another_object_under_the_number_is_never_replaced_and_does_not_count(store):
    store_object(store, encoded(b"others"))
    store_object(store, encoded())
    with pytest.raises(Corruption, match="another one than was written"):
        verify_object(store, encoded())
    assert bytes(read_block(store, 9, read_index(store, 9).blocks[0])) == b"others"


@pytest.mark.parametrize("kept", [0, 3, 24, 40, -1])
def test_a_torn_object_does_not_count_and_is_not_replaced(store, kept):
    whole = b"".join(encoded().parts)
    store.put(KEY, [whole[:kept]])
    with pytest.raises(Corruption):
        verify_object(store, encoded())
    store_object(store, encoded())
    with pytest.raises(Corruption):
        verify_object(store, encoded())


def test_a_missing_object_is_said_to_be_missing(store):
    with pytest.raises(Rejected, match="no shared object 9"):
        read_index(store, 9)
