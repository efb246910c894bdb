"""Cores and memory of a process, by trees of files as the kernel shows them."""

import os

import pytest

from millstream.config import machine
from millstream.config.machine import usable_cores, usable_memory_bytes
from millstream.config.node_properties import NODE_PROPERTIES
from millstream.config.settings import Settings

MIB = 2**20


@pytest.fixture
def tree(tmp_path):
    """Writes files below a root."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return write


@pytest.fixture(autouse=True)
def sixty_four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


def files(cgroup, **others):
    return {"proc__self__cgroup": cgroup, **{f"sys__fs__cgroup__{name}": text for name, text in others.items()}}


@pytest.mark.parametrize(
    ("found", "cores"),
    [
        ({}, 64),
        (files("0::/\n", **{"cpu.max": "max 100000\n"}), 64),
        (files("0::/\n", **{"cpu.max": "200000 100000\n"}), 2),
        (files("0::/\n", **{"cpu.max": "350000 100000\n"}), 3),
        (files("0::/\n", **{"cpu.max": "50000 100000\n"}), 1),
        (files("0::/\n", **{"cpu.max": "9900000 100000\n"}), 64),
        (files("0::/a.slice/b\n", **{"a.slice__cpu.max": "400000 100000\n", "a.slice__b__cpu.max": "max 100000\n"}), 4),
        (files("0::/a/b\n", **{"a__cpu.max": "800000 100000\n", "a__b__cpu.max": "300000 100000\n"}), 3),
        (files("0::/elsewhere\n", **{"cpu.max": "500000 100000\n"}), 5),
        (files("3:cpu,cpuacct:/\n", **{"cpu__cpu.cfs_quota_us": "250000\n", "cpu__cpu.cfs_period_us": "100000\n"}), 2),
        (files("3:cpu:/\n", **{"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}), 64),
        (files("nonsense\n\xff", **{"cpu.max": "what\n"}), 64),
        (files("0::/../..\n", **{"cpu.max": "0 0\n"}), 64),
    ],
)
def test_shards_follow_the_quota_of_cpu_time(tree, found, cores):
    assert usable_cores(tree(**found)) == cores


def test_a_cpuset_bounds_the_cores(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4})
    assert usable_cores(tree(**files("0::/\n", **{"cpu.max": "800000 100000\n"}))) == 2


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        (files("0::/\n", **{"memory.max": "536870912\n"}), 512 * MIB),
        (files("0::/a/b\n", **{"a__memory.max": "268435456\n", "a__b__memory.max": "max\n"}), 256 * MIB),
        (files("4:memory:/x\n", **{"memory__x__memory.limit_in_bytes": "134217728\n"}), 128 * MIB),
    ],
)
def test_memory_is_the_least_limit_of_the_groups(tree, found, limit):
    assert usable_memory_bytes(tree(**found)) == limit
    assert usable_memory_bytes(tree(**files("0::/\n", **{"memory.max": "max\n"}))) <= limit * 1000


def test_a_default_start_has_no_more_shards_than_its_memory_allows(monkeypatch):
    monkeypatch.setattr(NODE_PROPERTIES["shards"]._default, "_compute", lambda: 64)
    assert Settings(data_dir="d", memory_bytes=1024 * MIB).shards == 32
    assert Settings(data_dir="d", memory_bytes=64 * MIB).shards == 2
    assert Settings(data_dir="d", memory_bytes=4096 * MIB).shards == 64


def test_shards_are_pinned_unless_a_quota_makes_them_share_cores(monkeypatch):
    assert Settings(data_dir="d", memory_bytes=4096 * MIB).shard_pinning == (machine.usable_cores() == 64)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    assert not Settings(data_dir="d").shard_pinning
