"""An event topic whose chunks do not tell what they are ends nothing but its partition, and can be deleted."""

from functools import partial
from unittest.mock import patch

from millstream.telemetry.log import Log
from sim.pairs.kinds import KINDS, TOPIC
from sim.pairs.operations import fill
from sim.pairs.single import Single


def test_files_of_a_topic_with_damaged_chunks_are_forgotten_and_removed() -> None:
    with patch.object(Log, "_write", lambda *_, **__: None):
        world = Single("damaged", KINDS["events"])
        fill(world, 12)
        (broker,) = world.lives()
        directory = broker.table.find(TOPIC, 0).log.directory
        topic = directory.rpartition("/")[0]
        done: list[int] = []
        broker.shard.storage.checkpoint(lambda: done.append(1))
        world.until(lambda: bool(done), "a checkpoint does not end")
        world.kill(torn=False)
        (disk,) = world.disks()
        for path, size in disk.files():
            if path.startswith(directory):
                disk.damage(path, 0, b"\xff" * size)
        world.start()
        (broker,) = world.lives()
        assert "header" in broker.table.find(TOPIC, 0).reason
        forgotten: list[int] = []
        broker.shard.storage.forget_files(directory, partial(forgotten.append, 1))
        world.until(lambda: bool(forgotten), "files are not forgotten")
        world.delete()
        world.wait(60_000_000)
        assert not [path for path, _ in disk.files() if path.startswith(topic)]
