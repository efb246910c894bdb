"""An unexpected exception in each verb of a partition ends that partition: the others go on, and a start or a repair
brings it back with all that was acknowledged.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from millstream.partition import delete_records
from millstream.partition.append import checks
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.read import list_offsets
from millstream.partition.replica.members import Members
from millstream.partition.table import Faulty
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.storage.log.log import Log
from millstream.storage.log.open_log import OpenLog
from millstream.storage.log.write_behind import WriteBehind
from millstream.storage.maintenance import checkpoint
from millstream.storage.maintenance.housekeeping import Housekeeping
from millstream.storage.segments.files import SegmentFiles
from millstream.tiers.archiver import Archiver
from millstream.tiers.partition_archive import PartitionArchive
from millstream.tiers.shared_joins import SharedJoins
from millstream.tiers.shared_uploads import SharedUploads
from millstream.tiers.shared_wal import SharedWal
from sim.engine.violation import Violation
from sim.pairs.history import _listening
from sim.pairs.judge import judge
from sim.pairs.kinds import KINDS, TOPIC
from sim.pairs.operations import fill
from sim.pairs.resting import rest
from sim.pairs.single import Single
from sim.pairs.world import MINUTE, SECOND, Refused

NAME = f"{TOPIC}/1"
"""The partition that fails."""

EVERY = ("local",)
POINTS = [
    (checks, "_append", ("local", "events")),
    (delete_records, "_delete_records", EVERY),
    (list_offsets, "_list_offset", EVERY),
    (SoleVoterGroup, "replicate", EVERY),
    (SoleVoterGroup, "on_durable", EVERY),
    (SoleVoterGroup, "propose_log_start", EVERY),
    (Partition, "on_commit", EVERY),
    (Partition, "trimmed", EVERY),
    (OpenLog, "became_durable", EVERY),
    (Log, "roll", EVERY),
    (checkpoint, "_LogCapture", ("local", "tiered events")),
    (WriteBehind, "write", ("local", "events")),
    (Housekeeping, "retain", EVERY),
    (Lifecycle, "_configure", EVERY),
    (SegmentFiles, "write", EVERY),
    (SegmentFiles, "write_index", EVERY),
    (SegmentFiles, "_write_aside", EVERY),
    (SegmentFiles, "remove", EVERY),
    (Archiver, "_advance", ("tiered",)),
    (Archiver, "_retain", ("tiered",)),
    (Archiver, "_drop_local", ("tiered", "shared")),
    (PartitionArchive, "propose", ("tiered", "shared")),
    (PartitionArchive, "_apply", ("tiered", "shared")),
    (PartitionArchive, "trimmed", ("tiered", "shared, log in store")),
    (SharedUploads, "_note", ("shared", "shared, log in store")),
    (SharedUploads, "_is_wanted", ("shared",)),
    (SharedUploads, "_read", ("shared", "shared, log in store")),
    (SharedJoins, "_target", ("shared",)),
    (SharedWal, "_read", ("shared, log in store",)),
    (SharedWal, "_confirm", ("shared, log in store",)),
]


class Planted(Exception):
    """What no verb raises."""


def concerns(value: object, directory: str) -> bool:
    """Whether an argument of a verb is about the partition."""
    if isinstance(value, str):
        return value.startswith(directory)
    if isinstance(value, (list, tuple)):
        return any(concerns(one, directory) for one in value)
    names = [getattr(value, "name", None)]
    for inner in ("log", "_log", "archive", "partition"):
        found = getattr(value, inner, None)
        names += [getattr(found, "name", None), getattr(getattr(found, "log", None), "name", None)]
    if NAME in names or (isinstance(value, Partition) and f"{value.name}/{value.index}" == NAME):
        return True
    key = getattr(value, "partition", None)
    of_part = getattr(key, "partition_index", 0) == 1
    return of_part or str(getattr(value, "path", "")).startswith(directory)


class Point:
    """A verb that raises for the partition while it is armed."""

    def __init__(self, monkeypatch, owner, name):
        self.hits = 0
        self.directory = ""
        """Of the partition, while it is armed."""
        original = getattr(owner, name)

        def verb(*arguments, **named):
            if self.directory and any(concerns(one, self.directory) for one in arguments):
                self.hits += 1
                raise Planted(f"in {name}")
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, verb)


def everything(world: Single) -> None:
    """Do what runs every verb of partition 1, as far as it can be done."""
    steps = (
        lambda: world.produce([world.record()], index=1),
        lambda: world.list_offset(world.wall_ms(), 1),
        lambda: world.delete_records(2, 1),
        lambda: world.alter({"segment.ms": "1000"}),
        lambda: fill_one(world, 3),
        lambda: world.delete_records(-1, 1),
        lambda: world.wait(3 * MINUTE),
        lambda: fill_one(world, 3),
        lambda: world.wait(3 * MINUTE),
    )
    for step in steps:
        with suppress(Refused, Violation):
            step()


def fill_one(world: Single, count: int) -> None:
    for _ in range(count):
        world.produce([world.record() for _ in range(3)], index=1)


def faulty(world: Single) -> bool:
    topic = world.controller.topics[TOPIC]
    return isinstance(world.up.table.find(topic.topic_id, 1), Faulty)


def repair(world: Single) -> None:
    """As ``millstream topic repair`` does."""
    topic_id = world.controller.topics[TOPIC].topic_id
    entry = world.up.table.find(topic_id, 1)
    assert isinstance(entry, Faulty)
    forgotten = []
    world.up.shard.storage.forget_files(entry.directory, lambda: forgotten.append(1))
    world.until(lambda: bool(forgotten), "its files are not forgotten")
    opened = world.up.lifecycle.reopen(topic_id, entry, world.config(TOPIC), Members())
    assert isinstance(opened, Partition)


@pytest.mark.parametrize(
    ("owner", "name", "kind"), [(owner, name, kind) for owner, name, kinds in POINTS for kind in kinds]
)
def test_a_verb_that_raises_ends_its_partition_alone(monkeypatch, owner, name, kind):
    errors: list[str] = []
    with _listening(errors):
        point = Point(monkeypatch, owner, name)
        world = Single(f"fault point {name}", KINDS[kind])
        world.errors = errors
        world.expected.append("failed in ")
        world.add_partition()
        fill(world, 8)
        fill_one(world, 8)
        world.wait(5 * SECOND)
        point.directory = world.serving(TOPIC, 1).log.directory + "/"
        world.truth_of(1).asked_start = 1 << 40  # every deletion may or may not have happened
        everything(world)
        assert point.hits, "the verb was not run"
        assert faulty(world)
        assert len([line for line in errors if "failed in " in line]) == 1
        fill(world, 4)
        world.wait(MINUTE)
        assert not world.up.shard.storage.checkpointer.failed_logs, "the write-ahead log is pinned"
        point.directory = ""
        if world.chance.random() < 0.5:
            world.kill(torn=True)
            world.start()
        else:
            repair(world)
        rest(world)
        judge(world)
        fill_one(world, 3)
        world.stop()
