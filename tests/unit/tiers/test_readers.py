"""Readers of the archive are told apart by where they go on, and the sizing rule counts what lies between them."""

import uuid

from millstream.format.manifest import ArchiveId
from millstream.tiers.readers import Readers, needed_bytes

ONE, TWO = ArchiveId(uuid.UUID(int=1), 0), ArchiveId(uuid.UUID(int=1), 1)


def test_a_read_that_begins_where_another_ended_is_the_same_reader():
    readers = Readers()
    first = readers.moved(ONE, 0, 10, 100)
    second = readers.moved(ONE, 0, 10, 100)
    assert first != second
    assert {readers.moved(ONE, 10, 20, 100), readers.moved(ONE, 10, 20, 100)} == {first, second}
    assert readers.moved(ONE, 10, 20, 100) not in (first, second), "a third one seeks there"


def test_the_next_group_needs_what_lies_between_it_and_the_one_before():
    now = 100.0
    readers = Readers(lambda: now)
    for end in (1000, 700, 100):
        readers.moved(ONE, 0, end, 10)
    readers.moved(TWO, 0, 500, 2)
    readers.moved(TWO, 0, 400, 2)
    assert needed_bytes(readers.gaps()) == [3000 + 200, 9000]
    now += 61
    readers.moved(TWO, 400, 450, 2)
    assert needed_bytes(readers.gaps()) == [], "readers that went away need nothing"
