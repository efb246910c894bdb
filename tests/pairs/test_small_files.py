"""Each small file of a partition, lost or damaged in a crash: what a start does, and what ``topic repair`` does.

In each history the partition has records in its files, and some in the write-ahead log alone. Nothing that was
acknowledged is lost, the partition is served in the end, and in a later term than before.
"""

import errno
from typing import Any, Final, NamedTuple

import pytest

from millstream.admin.bodies import RepairAsked
from millstream.app.repairs import Repair
from millstream.core.controller import requests
from millstream.errors import MillstreamError
from millstream.format.names import EPOCHS_FILE, INDEX_SUFFIX, PRODUCERS_SUFFIX
from millstream.partition.partition import Partition
from sim.pairs.history import _listening
from sim.pairs.judge import judge
from sim.pairs.kinds import KINDS, TOPIC, Kind
from sim.pairs.operations import OPERATIONS, fill
from sim.pairs.resting import rest
from sim.pairs.several import Several


class After(NamedTuple):
    """What becomes of a replica."""

    start: str
    """``served``, ``failed`` or ``filled``: its files are put aside, and another replica has them."""
    plan: str = ""
    """Step of the repair as it is planned; empty if there is nothing to repair."""


SERVED, FILLED = After("served"), After("filled")
DERIVED, INSTALLED = After("failed", "derive"), After("failed", "install")

ANY: Final = ("local", "compacted", "tiered", "shared", "events", "tiered events")
KEPT_ELSEWHERE: Final = ("tiered", "shared", "tiered events")
"""Kinds of which the object store has a part."""

HOLDERS: Final = {"always one": 1, "moved to one": 3, "three": 3}
"""Who holds the partition, and the replicas that it is created with."""

DAMAGES: Final = (
    (EPOCHS_FILE, "lost"),
    (EPOCHS_FILE, "damaged"),
    (EPOCHS_FILE, "unreadable"),
    (INDEX_SUFFIX, "lost"),
    (INDEX_SUFFIX, "damaged"),
    (PRODUCERS_SUFFIX, "lost"),
    (PRODUCERS_SUFFIX, "damaged"),
)


def expected(kind: str, holders: str, file: str, damage: str) -> After:
    """The table. The file ``epochs`` has what no other file has: the vote, the positions of entries, what is archived.
    Everything else is derived again.
    """
    if file != EPOCHS_FILE:
        return SERVED
    if holders == "three":
        return INSTALLED if "events" in kind else FILLED
    if holders == "always one" and damage == "lost" and kind not in KEPT_ELSEWHERE:
        return SERVED  # derived by the start: a sole voter's log has batches alone
    return DERIVED


def _works(_: str, __: str) -> int:
    """Nothing fails on the disk."""
    return 0


class History:
    """A cluster with the topic, and its broker whose files are damaged."""

    def __init__(self, kind: str, holders: str) -> None:
        made = KINDS[f"{kind}, three replicas"]
        self.holders = holders
        self.world = Several(f"{kind}/{holders}", Kind(made.configs, settings=made.settings, replicas=HOLDERS[holders]))
        self.wrong: list[str] = []

    def begin(self) -> None:
        """Write, and let the broker hold the partition alone if that is asked for."""
        world = self.world
        fill(world, 12)
        OPERATIONS["produce idempotently"](world)
        if self.holders == "moved to one":
            node = world.home(TOPIC, 0)[0].node_id
            other = next(one.node_id for one in world.members if one.node_id != node)
            world.decide(requests.ReassignPartitions((requests.ReassignPartition(TOPIC, 0, (other,)),)))
            group = world.controller.topics[TOPIC].partitions[0].raft_group
            world.until(lambda: group not in world.controller.moves, "a move does not end")
        if world.config(TOPIC).is_archived:
            rest(world)
        self.member, _ = world.home(TOPIC, 0)

    @property
    def entry(self) -> Any:
        """Of the partition on the broker."""
        return self.member.table.find(TOPIC, 0)

    def damage(self, file: str, damage: str) -> int:
        """The power fails, and a file cannot be read as it was; the epoch of before."""
        world, member = self.world, self.member
        directory, epoch = self.entry.log.directory, self.entry.leader_epoch
        self.crash(2)
        paths = [path for path, _ in member.disk.files() if path.startswith(directory + "/") and path.endswith(file)]
        for path in paths:
            if damage == "lost":
                member.disk.unlink(path)
            elif damage == "damaged":
                member.disk.damage(path, 0, b"\xff" * 64)
            else:
                member.disk.fail = lambda kind, where: errno.EIO if kind == "read" and where in paths else 0
            world.expected.append(path)
        self.start()
        return epoch

    def crash(self, logged: int) -> None:
        """The power fails when all is in the files but ``logged`` batches, which are in the write-ahead log alone."""
        world, member, done = self.world, self.member, list[int]()
        world.until(lambda: not world.lag(TOPIC, 0), "replicas do not catch up")
        member.shard.storage.checkpoint(lambda: done.append(1))
        world.until(lambda: bool(done), "a checkpoint does not end")
        fill(world, logged)
        member.crash(torn=False)

    def lose_directory(self, directory: str) -> None:
        """The disk has nothing of a partition."""
        disk = self.member.disk
        for path in [path for path, _ in disk.files() if path.startswith(f"{directory}/")]:
            disk.unlink(path)
        disk.remove_directory(directory)
        self.world.expected.append(directory)

    def start(self) -> None:
        """The power is on again."""
        self.member.start()
        self.world.until(lambda: self.member.is_ready and self.entry is not None, "the broker does not come up")
        self.world.wait(1_000_000)

    def ask_repair(self, *, execute: bool) -> list[Any]:
        """As ``millstream topic repair`` on the broker; the list gets the answer."""
        shard, answers = self.member.shard, list[Any]()
        asked = RepairAsked(TOPIC, 0, execute=execute)
        partitions, unclean = self.member.partitions, self.member.unclean
        Repair(shard.context.reactor, shard.storage, partitions, unclean, self.entry, asked, answers.append).begin()
        self.member.idle = False
        return answers

    def answer(self, *, execute: bool) -> Any:
        """The answer to that."""
        answers = self.ask_repair(execute=execute)
        self.world.until(lambda: bool(answers), "a repair is not answered")
        return answers[0]

    def repair(self, *, execute: bool) -> dict[str, Any]:
        """The answer to that, which is no error."""
        answer = self.answer(execute=execute)
        assert not isinstance(answer, MillstreamError), answer
        return answer

    def play(self, file: str, damage: str, after: After) -> None:
        """One cell of the table."""
        cell = f"{file} {damage}"
        epoch = self.damage(file, damage)
        entry = self.entry
        aside = self.member.shard.stats.counter("recovery_repairs", kind="replica_lost").value > 0
        start = "failed" if not isinstance(entry, Partition) else "filled" if aside else "served"
        plan = ""
        if start == "failed":
            planned = self.repair(execute=False)
            self.member.disk.fail = _works
            done, plan = self.repair(execute=True), planned["step"]
            assert done["step"] == ("open" if damage == "unreadable" else plan), "what can be read again is opened"
            assert not planned["done"] and done["done"], (cell, planned, done)
            assert planned["lost"] == done["lost"] == 0, (cell, planned, done)
        self.member.disk.fail = _works
        assert (start, plan) == after, (cell, getattr(entry, "reason", entry))
        self.world.until(lambda: not self.world.lag(TOPIC, 0), f"{cell}: replicas do not catch up")
        if self.holders != "three":
            assert self.world.home(TOPIC, 0)[1].leader_epoch > epoch, cell
        rest(self.world)
        judge(self.world)
        led = self.world.home(TOPIC, 0)[1].leader_epoch
        known = {one.cache.partition(TOPIC, 0).leader_epoch for one in self.world.members}
        assert known == {led}, "clients are fenced by an epoch that brokers do not tell"


@pytest.mark.parametrize("holders", HOLDERS)
@pytest.mark.parametrize("kind", ANY)
def test_a_small_file_is_lost_or_damaged(kind: str, holders: str) -> None:
    history = History(kind, holders)
    with _listening(history.wrong):
        history.begin()
        for file, damage in DAMAGES:
            history.play(file, damage, expected(kind, holders, file, damage))


@pytest.mark.parametrize(("kind", "holders"), [("shared", "moved to one"), ("events", "always one")])
def test_the_power_fails_at_each_step_of_a_repair(kind: str, holders: str) -> None:
    """The repair is called again, or the start has opened the partition: the same records are there."""
    history = History(kind, holders)
    world, step, repairs = history.world, 0, 0
    with _listening(history.wrong):
        history.begin()
        member = history.member
        while True:
            history.damage(EPOCHS_FILE, "damaged")
            step += 1
            member.disk.crash_at = member.disk.operations + step
            answers = history.ask_repair(execute=True)
            world.until(lambda answers=answers: bool(answers) or not member.is_up, "a repair is not answered")
            if answers:
                member.disk.crash_at = -1
                break
            world.until(lambda: member.is_up and member.is_ready, "the broker does not come up")
            world.wait(1_000_000)
            if not isinstance(history.entry, Partition):
                repairs += 1
                assert history.repair(execute=True)["done"]
            end = world.latest()
            assert end > max(world.truth_of().acknowledged), step
        assert step > 10 and repairs > 5
        rest(world)
        judge(world)


@pytest.mark.parametrize("holders", ["always one", "moved to one"])
@pytest.mark.parametrize("kind", KEPT_ELSEWHERE)
@pytest.mark.parametrize("logged", [0, 2])
def test_the_directory_of_the_only_replica_is_lost(kind: str, holders: str, logged: int) -> None:
    """It is not served, after any number of starts, until a repair takes up what the store has: nothing is written over
    that. ``logged`` batches are in the write-ahead log alone.
    """
    history = History(kind, holders)
    world = history.world
    with _listening(history.wrong):
        history.begin()
        before = history.entry
        while not (archived := before.archive.archive.end_offset):
            fill(world, 12)
            rest(world)
        member, epoch = history.member, before.leader_epoch
        history.crash(logged)
        history.lose_directory(before.log.directory)
        for stops in (False, True):
            history.start()
            assert not isinstance(history.entry, Partition), "its offsets would be given out again"
            if stops:
                break
            member.crash(torn=False)
        planned = history.repair(execute=False)
        done = history.repair(execute=True)
        assert (planned["step"], done["step"]) == ("derive", "derive")
        led = world.home(TOPIC, 0)[1]
        end = done["end_offset"]
        assert archived <= end == led.log.next_offset and led.leader_epoch > epoch
        truth = world.truth_of()
        for offset in [one for one in truth.acknowledged if one >= end]:
            del truth.acknowledged[offset]
        truth.latest = min(truth.latest, end)
        fill(world, 2)
        rest(world)
        judge(world)


@pytest.mark.parametrize("holders", ["always one", "moved to one"])
@pytest.mark.parametrize("logged", [0, 2])
def test_the_directory_of_the_only_replica_is_lost_and_the_store_has_its_log(holders: str, logged: int) -> None:
    """It is served with all that was acknowledged: the store had it before."""
    history = History("shared, log in store", holders)
    world = history.world
    with _listening(history.wrong):
        history.begin()
        directory = history.entry.log.directory
        history.crash(logged)
        history.lose_directory(directory)
        history.start()
        world.until(lambda: isinstance(history.entry, Partition), f"it is not served: {history.entry}")
        fill(world, 2)
        rest(world)
        judge(world)


@pytest.mark.parametrize("kind", ["local", "tiered"])
@pytest.mark.parametrize("moved_us", [5_000, 1_000_000])
def test_the_only_replica_is_damaged_while_the_partition_moves_to_several(kind: str, moved_us: int) -> None:
    """Its leader fills it, if the others have all. Without a leader a repair changes nothing: a person names it."""
    history = History(kind, "always one")
    world = history.world
    with _listening(history.wrong):
        history.begin()
        member = history.member
        nodes = sorted((one.node_id for one in world.members), key=lambda node: node != member.node_id)
        world.decide(requests.ReassignPartitions((requests.ReassignPartition(TOPIC, 0, tuple(nodes)),)))
        world.wait(moved_us)
        world.until(lambda: isinstance(history.entry, Partition), "it is not opened as one of several")
        directory = history.entry.log.directory
        checkpointed: list[int] = []
        member.shard.storage.checkpoint(lambda: checkpointed.append(1))
        world.until(lambda: bool(checkpointed), "a checkpoint does not end")
        member.crash(torn=False)
        member.disk.damage(f"{directory}/{EPOCHS_FILE}", 0, b"\xff" * 64)
        world.expected.append(directory)
        history.start()
        world.wait(20_000_000)
        if world.leader(TOPIC, 0) is not None:
            assert isinstance(history.entry, Partition), "the start has its leader fill it"
            assert moved_us > 5_000
        else:
            assert moved_us == 5_000
            for execute in (False, True):
                assert "--unclean --from BROKER" in history.answer(execute=execute).message
            answers: list[Any] = []
            asked = RepairAsked(TOPIC, 0, execute=True, unclean_from=member.node_id, reason="the test")
            member.unclean.ask(history.entry, asked, answers.append)
            world.until(lambda: bool(answers), "a cut is not answered")
            assert answers[0]["done"] and answers[0]["lost"] == 0, answers[0]
        world.until(lambda: not world.lag(TOPIC, 0), "replicas do not catch up")
        fill(world, 2)
        rest(world)
        judge(world)


@pytest.mark.parametrize("kind", ["local", "tiered", "events"])
@pytest.mark.parametrize("created", [1, 2])
@pytest.mark.parametrize("loss", ["directory", "directory, with records logged", EPOCHS_FILE])
def test_a_replica_of_before_a_move_to_three_loses_its_files(kind: str, created: int, loss: str) -> None:
    """It is filled by those that hold the partition now, whoever held it when it was created."""
    history = History(kind, "three")
    history.world.kind = Kind(history.world.kind.configs, replicas=created)
    world = history.world = Several(f"{kind}/{created}/{loss}", history.world.kind)
    with _listening(history.wrong):
        history.begin()
        member = history.member
        target = tuple(one.node_id for one in world.members)
        world.decide(requests.ReassignPartitions((requests.ReassignPartition(TOPIC, 0, target),)))
        group = world.controller.topics[TOPIC].partitions[0].raft_group
        world.until(lambda: group not in world.controller.moves, "a move does not end")
        fill(world, 2)
        directory = history.entry.log.directory
        history.crash(2 * ("logged" in loss))
        if loss == EPOCHS_FILE:
            member.disk.damage(f"{directory}/{EPOCHS_FILE}", 0, b"\xff" * 64)
            world.expected.append(directory)
        else:
            history.lose_directory(directory)
        history.start()
        if not isinstance(history.entry, Partition):
            assert kind == "events" and history.repair(execute=True)["step"] == "install"
        world.until(lambda: not world.lag(TOPIC, 0), "replicas do not catch up")
        assert history.entry.log.next_offset > max(world.truth_of().acknowledged)
        rest(world)
        judge(world)


@pytest.mark.parametrize("kind", KEPT_ELSEWHERE)
def test_the_directory_of_the_only_replica_is_lost_while_the_partition_moves_to_several(kind: str) -> None:
    """No empty log leads: a person names the replica, and it continues from what the store has."""
    history = History(kind, "always one")
    world = history.world
    with _listening(history.wrong):
        history.begin()
        before = history.entry
        while not (archived := before.archive.archive.end_offset):
            fill(world, 12)
            rest(world)
        member = history.member
        nodes = sorted((one.node_id for one in world.members), key=lambda node: node != member.node_id)
        world.decide(requests.ReassignPartitions((requests.ReassignPartition(TOPIC, 0, tuple(nodes)),)))
        world.wait(5_000)
        world.until(lambda: isinstance(history.entry, Partition), "it is not opened as one of several")
        checkpointed: list[int] = []
        member.shard.storage.checkpoint(lambda: checkpointed.append(1))
        world.until(lambda: bool(checkpointed), "a checkpoint does not end")
        member.crash(torn=False)
        history.lose_directory(before.log.directory)
        history.start()
        world.wait(20_000_000)
        assert world.leader(TOPIC, 0) is None
        assert "--unclean --from BROKER" in history.answer(execute=True).message
        answers: list[Any] = []
        asked = RepairAsked(TOPIC, 0, execute=True, unclean_from=member.node_id, reason="the test")
        member.unclean.ask(history.entry, asked, answers.append)
        world.until(lambda: bool(answers), "a cut is not answered")
        assert answers[0]["done"] and answers[0]["end_offset"] == archived, answers[0]
        truth = world.truth_of()
        for offset in [one for one in truth.acknowledged if one >= archived]:
            del truth.acknowledged[offset]
        truth.latest = min(truth.latest, archived)
        world.until(lambda: not world.lag(TOPIC, 0), "replicas do not catch up")
        fill(world, 2)
        rest(world)
        judge(world)
