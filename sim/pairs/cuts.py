"""An unclean cut of pairs: no replica leads, and a person names the one that the partition continues from.

What the replica that is named had durably when it failed stays, and what the object store has. What others had beyond
that is lost, and never comes back, however late its brokers do. While the cut is carried out, the power of a broker may
fail, at any moment or at a step of its disk.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.admin.bodies import RepairAsked
from millstream.errors import MillstreamError, Retriable
from millstream.format.names import EPOCHS_FILE
from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.storage.disk import exists
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation
from sim.pairs.kinds import TOPIC
from sim.pairs.truth import Refused

if TYPE_CHECKING:
    from millstream.partition.table import Faulty
    from sim.pairs.member import Member
    from sim.pairs.several import Several

ONE_ALONE: Final = "has one replica alone"
"""Why a partition is not cut, but repaired."""

_TRIES: Final = 60
_STORE_AGAIN: Final = 10
"""Tries after which a store that is away is there: a cut of an archived topic waits for it."""
_STEPS: Final = 60
"""Operations of a disk, one of which may be the last before its power fails."""
_SOON_US: Final = 2 * SECOND


class _Named(NamedTuple):
    """What the replica that is named has when it fails."""

    member: Member
    durable: int
    """Records below this offset are on every disk that has them."""


def cut_uncleanly(several: Several) -> None:
    """Take every replica down, and have one continue. All brokers are up and connected."""
    chance = several.chance
    if several.waits_for_store:
        several.set_store(Faults())  # a broker with its log in the store starts when that is there
    replicas = several.controller.topics[TOPIC].partitions[0].replicas
    named = chance.choice([one for one in several.members if one.node_id in replicas])
    others = [one for one in several.members if one is not named]
    several.until(lambda: not several.lag(TOPIC, 0), "replicas do not catch up")
    several.wait(SECOND)
    durable = several.home(TOPIC, 0)[1].high_watermark
    is_whole = len(replicas) == len(several.members)
    if is_whole and chance.random() < 0.4:
        several.isolate(named)
        for _ in range(chance.randint(1, 8)):
            several.produce([several.record() for _ in range(3)])
        several.wait(chance.choice((0, 10 * SECOND)))  # what was acknowledged may be archived
    else:
        several.send()
    away = chance.choice([None, *others]) if is_whole else None
    if away is not None:
        away.crash(torn=chance.random() < 0.5)
    found = _taken_down(several, named, durable)
    if found is None:
        return
    several.connect()
    _have_it_cut(several, found)


def _taken_down(several: Several, named: Member, durable: int) -> _Named | None:
    """Every replica that is there fails. The one that is named is the first: it has no more than what is said of it."""
    partition = named.table.find(TOPIC, 0)
    if not isinstance(partition, Partition):
        return None  # another operation has taken it elsewhere
    if several.chance.random() < 0.3:
        _lose_epochs(several, named, partition)
    else:
        several.fail(named)
    for one in several.members:
        if one is not named and one.is_up:
            several.fail(one)
    return _Named(named, durable)


def _lose_epochs(several: Several, member: Member, partition: Partition) -> None:
    """The power of the broker fails, and the file that knows its terms and positions cannot be read after it."""
    done: list[int] = []
    assert member.shard is not None
    member.shard.storage.checkpoint(lambda: done.append(1))
    several.until(lambda: bool(done), "a checkpoint does not end")
    if several.chance.random() < 0.5:
        with suppress(Refused):  # a majority may be away already
            several.produce([several.record() for _ in range(3)])
    member.crash(torn=several.chance.random() < 0.5)
    path = f"{partition.log.directory}/{EPOCHS_FILE}"
    if exists(member.files, path):
        if several.chance.random() < 0.5:
            member.disk.damage(path, 0, b"\xff" * 64)
        else:
            member.disk.unlink(path)
        several.expected.append(path)
    member.start()


def _have_it_cut(several: Several, named: _Named) -> None:
    """Ask until the partition is led again: after the cut, or because a start has brought its replicas back."""
    group = several.controller.topics[TOPIC].partitions[0].raft_group
    before = several.controller.cuts.get(group)
    for number in range(_TRIES):
        if number == _STORE_AGAIN:
            several.set_store(Faults())
        found = several.leader(TOPIC, 0)
        if found is not None:
            if several.controller.cuts.get(group) not in (None, before):
                _note(several, named, found[1])
            several.end_power_failures()
            return
        answers: list[Any] = []
        if named.member.is_up and named.member.is_ready:
            _ask(named.member, answers)
            if not number:
                _disturb(several)
            several.run(lambda answers=answers: bool(answers) or not named.member.is_up, 30 * SECOND)
            if answers and isinstance(answers[0], MillstreamError) and ONE_ALONE in answers[0].message:
                several.end_power_failures()
                raise Refused(ONE_ALONE)
        several.wait(SECOND)
    raise Violation("nobody leads after an unclean cut")


def _ask(member: Member, answers: list[Any]) -> None:
    """As ``millstream topic repair --unclean --from BROKER --execute``."""
    entry: Partition | Faulty | None = member.table.find(TOPIC, 0)  # pyright: ignore[reportAssignmentType]
    asked = RepairAsked(TOPIC, 0, execute=True, unclean_from=member.node_id, reason="pairs")
    if entry is None:
        answers.append(Retriable("it is being opened", ErrorCode.BROKER_NOT_AVAILABLE))
        return
    try:
        member.unclean.ask(entry, asked, answers.append)
    except MillstreamError as error:
        answers.append(error)


def _disturb(several: Several) -> None:
    """The power of one or two brokers fails while the cut is carried out, and comes back after a while."""
    chance = several.chance
    for one in chance.sample(several.members, chance.choice((0, 1, 1, 2))):
        if not one.is_up:
            continue
        if chance.random() < 0.6:
            one.disk.crash_at = one.disk.operations + chance.randint(1, _STEPS)
        else:
            several.power_fails_in(one, chance.randint(0, _SOON_US))


def _note(several: Several, named: _Named, partition: Partition) -> None:
    """What clients know from now on."""
    several.hear()
    truth = several.truth_of()
    for offset in [one for one in truth.acknowledged if one >= named.durable]:
        record = truth.acknowledged.pop(offset)
        if offset < partition.log.next_offset:
            truth.unknown[record.value] = record
    truth.latest = min(truth.latest, named.durable)
    truth.start = min(truth.start, partition.log.start_offset)
