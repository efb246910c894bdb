"""A partition that a dead broker had alone: restored from the store here, and gone again whatever the store does."""

from types import SimpleNamespace

import pytest

from millstream.partition.replica import moving
from millstream.partition.replica.members import Members
from millstream.partition.replica.moving import Place, change_replicas
from millstream.partition.table import Elsewhere, PartitionTable, Restoring

ID = bytes(range(16))


class Cell:
    """A shard whose table has one partition, of which this broker has no replica."""

    def __init__(self):
        self.table = PartitionTable()
        self.table.add("t", ID, Elsewhere("t", 0, 7, 0))
        self.restored, self.removing, self.removed = [], [], []
        self.lifecycle = SimpleNamespace(
            restore=lambda topic_id, place, term: self.restored.append((place, term)),
            remove=lambda place, begin: self.removing.append(begin),
        )
        self.storage = SimpleNamespace(
            data_dir="/data",
            disk=None,
            removals=SimpleNamespace(remove=lambda directory, done: (self.removed.append(directory), done())),
            checkpointer=SimpleNamespace(request=lambda done: done()),
        )

    def change(self, home, *, restores=True):
        config = SimpleNamespace(has_events=False)
        members = Members((1,), learns=True, restores=restores)
        place = Place("t", ID, 0, 7, home, config, members, 5)
        change_replicas(self.lifecycle, SimpleNamespace(id=0, reactor=None), self.storage, self.table, place)

    @property
    def entry(self):
        return self.table.find(ID, 0)


@pytest.fixture
def cell(monkeypatch):
    monkeypatch.setattr(moving, "exists", lambda disk, path: False)
    return Cell()


def test_a_partition_that_this_broker_alone_is_to_have_is_restored_in_a_later_term(cell):
    cell.change(0)
    assert isinstance(cell.entry, Restoring)
    assert cell.restored == [(cell.entry, 5)]


def test_files_that_the_store_has_yet_to_write_are_removed_when_it_has_answered(cell):
    cell.change(0)
    entry = cell.entry
    entry.asked = True
    cell.change(None)
    assert not isinstance(cell.entry, Restoring)
    gone = []
    cell.removing[0](lambda: gone.append(True))
    assert (cell.removed, gone) == ([], []), "they would come back, and be taken for the partition's later"
    entry.answered()
    assert cell.removed == [entry.directory] and gone == [True]
    entry.answered()
    assert len(cell.removed) == 1


def test_without_a_question_under_way_they_are_removed_at_once(cell):
    cell.change(0)
    cell.change(None)
    gone = []
    cell.removing[0](lambda: gone.append(True))
    assert gone == [True]
