"""Each shard's memory is bound to the node of its core; a refused binding costs speed, a refused lock the start."""

import pytest

from millstream.app import memory
from millstream.config.load import load_settings
from millstream.config.machine import nodes_of_cores
from millstream.errors import Unavailable


class FakeArena:
    def __init__(self, error=None):
        self.node, self.locked, self.error = None, False, error

    def bind(self, node):
        if self.error:
            raise self.error
        self.node = node

    def lock(self):
        if self.error:
            raise self.error
        self.locked = True


def settings(*pairs):
    return load_settings(None, ["shards=2", "memory.bytes=128MiB", "shards.pin=true", *pairs], {})


@pytest.fixture
def two_nodes(monkeypatch):
    monkeypatch.setattr(memory, "nodes_of_cores", lambda: {0: 0, 1: 1})
    monkeypatch.setattr(memory, "core_of", lambda shard: shard)


def machine(root, **lists):
    for name, cores in lists.items():
        (root / "sys/devices/system/node" / name).mkdir(parents=True)
        (root / "sys/devices/system/node" / name / "cpulist").write_text(f"{cores}\n")
    return str(root)


def test_cores_have_nodes_if_there_are_several(tmp_path):
    assert nodes_of_cores(machine(tmp_path / "two", node0="0-1,4", node1="2-3,5")) == {
        0: 0,
        1: 0,
        4: 0,
        2: 1,
        3: 1,
        5: 1,
    }
    assert nodes_of_cores(machine(tmp_path / "one", node0="0-3")) == {}
    assert nodes_of_cores(str(tmp_path / "none")) == {}
    assert nodes_of_cores(machine(tmp_path / "odd", node0="", node1="x,7-,3")) == {7: 1, 3: 1}


def test_each_arena_is_bound_to_the_node_of_its_shards_core(two_nodes):
    arenas = [FakeArena(), FakeArena()]
    memory.place_memory(arenas, settings())
    assert [one.node for one in arenas] == [0, 1]
    assert not any(one.locked for one in arenas)


def test_shards_that_are_not_pinned_have_no_node(two_nodes):
    arenas = [FakeArena(), FakeArena()]
    memory.place_memory(arenas, settings("shards.pin=false"))
    assert [one.node for one in arenas] == [None, None]


def test_a_binding_that_is_refused_is_no_failure_and_a_lock_is(two_nodes):
    refused = [FakeArena(OSError(1, "Operation not permitted")), FakeArena()]
    memory.place_memory(refused, settings())
    assert [one.node for one in refused] == [None, 1]
    with pytest.raises(Unavailable, match=r"memory\.lock=true.*Operation not permitted"):
        memory.place_memory(refused, settings("memory.lock=true"))
