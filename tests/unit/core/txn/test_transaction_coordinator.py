"""Decisions of the transaction coordinator, version by version, and through crashes between decision and markers."""

import random
from typing import Any

import msgspec
import pytest

from millstream.core.txn.coordinator import PATIENCE_US, TransactionCoordinator
from millstream.core.txn.image import Image
from millstream.core.txn.messages import (
    AbortOverdue,
    AddPartitions,
    DeadlinePassed,
    End,
    Expire,
    Identity,
    InitProducer,
    MarkersWritten,
    Persisted,
    SendMarkers,
    TransactionSettings,
)
from millstream.core.txn.state import TransactionState
from millstream.model.error_code import ErrorCode

OK = ErrorCode.NONE
PLACES = (("t", 0), ("t", 1))
OLD, NEW = 0, 2
WALL_MS = 1_700_000_000_000


class World:
    """A coordinator with its log. Writes are durable at once unless ``hold`` is set."""

    def __init__(
        self,
        stored: dict[str, Image] | None = None,
        next_id: int = 100,
        settings: TransactionSettings | None = None,
        wall_ms: int = WALL_MS,
    ) -> None:
        self.core = TransactionCoordinator(settings or TransactionSettings())
        self.stored = dict(stored or {})
        self.next_id = next_id
        self.us, self.wall_ms = 1_000_000, wall_ms
        self.answers: dict[object, Any] = {}
        self.markers: list[SendMarkers] = []
        self.unsettled: list[Any] = []
        self.hold = False
        self.ids = True
        """Whether unused producer ids can be had."""
        self.fails = OK
        for name, image in self.stored.items():
            self.core.replay(name, msgspec.structs.replace(image, last_epoch=-1))
        self._take(self.core.loaded(self.us, self.wall_ms))

    def step(self, given: Any) -> None:
        self._take(self.core.step(given, self.us, self.wall_ms))

    def _take(self, out: Any) -> None:
        self.answers.update(dict(out.answers))
        self.markers += out.markers
        self.unsettled += out.writes
        for request in out.wants_id if self.ids else ():
            self.next_id += 1
            self.step(msgspec.structs.replace(request, spare_id=self.next_id))
        if not self.hold:
            self.settle()

    def settle(self) -> None:
        while self.unsettled:
            write = self.unsettled.pop(0)
            if self.fails is OK:
                if write.image is None:
                    self.stored.pop(write.transactional_id, None)
                else:
                    self.stored[write.transactional_id] = write.image
            self.step(Persisted(write.receipt, self.fails))

    def written(self) -> None:
        """Every marker that was asked for is written."""
        markers, self.markers = self.markers, []
        for one in markers:
            self.step(MarkersWritten(one.transactional_id, one.producer_id, one.producer_epoch))

    def crash(self) -> "World":
        return World(self.stored, self.next_id)

    def advance(self, ms: int) -> None:
        self.us += ms * 1000
        self.wall_ms += ms
        self.step(DeadlinePassed())

    # Requests

    def init(self, token: str = "init", producer: int = -1, epoch: int = -1, **more: Any) -> Any:
        self.step(InitProducer(token, "x", more.pop("timeout_ms", 60_000), producer, epoch))
        return self.answers.get(token)

    def add(self, who: Identity, version: int = OLD, token: str = "add", **more: Any) -> Any:
        places, verify = more.pop("places", PLACES), more.pop("verify_only", False)
        self.answers.pop(token, None)
        self.step(AddPartitions(token, "x", who.producer_id, who.producer_epoch, places, verify, version))
        return self.answers.get(token)

    def end(self, who: Identity, commits: bool = True, version: int = OLD, token: str = "end") -> Any:
        self.answers.pop(token, None)
        self.step(End(token, "x", who.producer_id, who.producer_epoch, commits, version))
        return self.answers.get(token)

    @property
    def image(self) -> Image:
        return self.stored["x"]


def begun(version: int = OLD) -> tuple[World, Identity]:
    world = World()
    who = world.init()
    assert who == Identity(OK, 101, 0)
    assert world.add(who, version) == (OK, OK)
    return world, who


def ongoing(epoch: int) -> Image:
    """An open transaction of version 2 of producer 7."""
    return Image(7, epoch, 60_000, TransactionState.ONGOING, frozenset(PLACES), WALL_MS, WALL_MS, client_version=NEW)


def test_a_transaction_is_decided_by_its_record_and_complete_when_its_markers_are_written() -> None:
    world, who = begun()
    world.hold = True
    assert world.end(who) is None, "the decision is not durable"
    assert world.markers == []
    world.settle()
    assert world.answers["end"] == Identity(OK, 101, 0)
    assert world.markers == [SendMarkers("x", 101, 0, True, OLD, PLACES)]
    assert world.image.state is TransactionState.PREPARE_COMMIT
    world.hold = False
    world.written()
    assert world.image.state is TransactionState.COMPLETE_COMMIT
    assert world.image.partitions == frozenset()
    assert world.end(who) == Identity(OK, 101, 0), "a repetition"
    assert world.end(who, commits=False).error is ErrorCode.INVALID_TXN_STATE


def test_what_a_crash_left_decided_is_completed_by_the_next_coordinator() -> None:
    world, who = begun()
    world.end(who, commits=False)
    after = world.crash()
    assert after.markers == world.markers
    after.written()
    assert after.image.state is TransactionState.COMPLETE_ABORT


def test_a_crash_before_the_decision_leaves_the_transaction_open_and_time_aborts_it() -> None:
    world, who = begun()
    world.hold = True
    world.end(who)
    after = world.crash()
    assert after.markers == []
    after.advance(60_000)
    assert [one.commits for one in after.markers] == [False]
    assert after.markers[0].producer_epoch == 1
    after.written()
    assert after.end(who).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(("version", "epoch"), [(OLD, 1), (NEW, 2)])
def test_a_new_producer_aborts_the_transaction_of_the_one_before_and_fences_it(version: int, epoch: int) -> None:
    world, who = begun(version)
    assert world.init("second") is None, "it waits for the abort"
    assert world.markers == [SendMarkers("x", 101, epoch, False, version, PLACES)]
    world.written()
    second = world.answers["second"]
    assert second == Identity(OK, 101, epoch + 1)
    for refused in (world.end(who, version=version), world.end(who, False, version)):
        assert refused.error is ErrorCode.PRODUCER_FENCED
    assert world.add(who, version) == (ErrorCode.PRODUCER_FENCED,) * 2
    assert world.add(second, version) == (OK, OK)


def test_each_transaction_of_version_2_ends_with_a_new_epoch() -> None:
    world, who = begun(NEW)
    following = world.end(who, version=NEW)
    assert following == Identity(OK, 101, 1)
    assert world.markers[0].producer_epoch == 1, "the marker fences what is late"
    world.written()
    assert world.end(who, version=NEW) == following, "a repetition"
    assert world.add(who, NEW) == (ErrorCode.PRODUCER_FENCED,) * 2, "late, of the transaction that has ended"
    assert world.add(following, NEW) == (OK, OK)
    assert world.end(who, version=NEW).error is ErrorCode.PRODUCER_FENCED, "a late end must not end the next one"
    assert world.end(following, False, NEW) == Identity(OK, 101, 2)


def test_an_abort_without_a_transaction_brings_the_next_epoch() -> None:
    world = World()
    who = world.init()
    assert world.end(who, False, NEW) == Identity(OK, 101, 1)
    assert world.image.state is TransactionState.COMPLETE_ABORT
    assert world.end(Identity(OK, 101, 1), True, NEW).error is ErrorCode.INVALID_TXN_STATE


def test_a_producer_gets_another_id_when_its_epochs_are_exhausted() -> None:
    start_ms = 1_700_000_000_000
    stored = Image(7, 32_766, 60_000, TransactionState.ONGOING, frozenset(PLACES), start_ms, 0, client_version=NEW)
    world = World({"x": stored})
    who = Identity(OK, 7, 32_766)
    following = world.end(who, version=NEW)
    assert following == Identity(OK, 101, 0)
    assert (world.markers[0].producer_id, world.markers[0].producer_epoch) == (7, 32_767)
    world.written()
    assert world.end(who, version=NEW) == following, "a repetition across the change of id"
    assert world.add(following, NEW) == (OK, OK)


def test_a_producer_continues_after_its_transaction_has_timed_out() -> None:
    for version, recovers in ((NEW, False), (NEW, True), (OLD, True)):
        world, who = begun(version)
        world.advance(60_000)
        assert (world.markers[0].commits, world.markers[0].producer_epoch) == (False, 1)
        world.written()
        assert world.end(who, True, NEW).error is ErrorCode.INVALID_TXN_STATE
        assert world.end(who, False, OLD).error is ErrorCode.PRODUCER_FENCED
        following = world.init("again", who.producer_id, 0) if recovers else world.end(who, False, NEW)
        assert following == Identity(OK, 101, 1)
        assert world.add(who, version) == (ErrorCode.PRODUCER_FENCED,) * 2
        assert world.add(following, version) == (OK, OK)


def test_a_transaction_that_times_out_in_the_last_epoch_of_its_producer_brings_another_id() -> None:
    world = World({"x": ongoing(32_766)})
    who = Identity(OK, 7, 32_766)
    world.advance(60_000)
    assert (world.markers[0].producer_id, world.markers[0].producer_epoch) == (7, 32_767)
    world.written()
    assert (world.image.producer_id, world.image.producer_epoch) == (101, 0)
    following = world.end(who, False, NEW)
    assert following == Identity(OK, 101, 0), "the producer had not heard of the time-out"
    assert world.end(who, True, NEW).error is ErrorCode.INVALID_TXN_STATE
    assert world.add(following, NEW) == (OK, OK)
    assert world.end(following, True, NEW) == Identity(OK, 101, 1)


def test_a_transaction_that_times_out_is_aborted_as_soon_as_there_is_an_id() -> None:
    world = World({"x": ongoing(32_766)})
    world.ids = False
    world.advance(60_000)
    world.advance(400)
    assert world.markers == [] and world.image.state is TransactionState.ONGOING
    world.ids = True
    world.advance(100)
    assert [one.commits for one in world.markers] == [False]


def test_an_id_that_comes_after_the_end_of_the_transaction_changes_nothing() -> None:
    world = World({"x": ongoing(32_766)})
    world.ids = False
    world.advance(60_000)
    world.ids = True
    following = world.end(Identity(OK, 7, 32_766), True, NEW)
    world.written()
    world.step(AbortOverdue("x", 7, 32_766, 999))
    assert world.markers == []
    assert world.add(following, NEW) == (OK, OK)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("epoch", [32_764, 32_765, 32_766])
def test_a_new_producer_that_fences_one_near_its_last_epoch_gets_epochs_that_no_one_had(
    epoch: int, version: int
) -> None:
    world = World({"x": msgspec.structs.replace(ongoing(epoch), client_version=version)})
    assert world.init() is None
    assert world.markers[0].producer_epoch <= 32_767
    world.written()
    found = world.answers["init"]
    assert found.error is OK and found.producer_epoch <= 32_766
    assert (found.producer_id, found.producer_epoch) > (7, epoch)
    assert world.end(Identity(OK, 7, epoch), False, version).error in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )


@pytest.mark.parametrize("end", ["commit", "abort", "time", "producer"])
def test_a_transaction_in_an_epoch_behind_the_last_ends(end: str) -> None:
    """An earlier broker gave that epoch to a producer, and nothing is left to fence it with."""
    world = World({"x": ongoing(32_767)})
    who = Identity(OK, 7, 32_767)
    if end == "time":
        world.advance(60_000)
    elif end == "producer":
        world.init()
    else:
        assert world.end(who, end == "commit", NEW) == Identity(OK, 101, 0)
    assert world.markers[0].producer_epoch == 32_767
    world.written()
    assert world.image.state is not TransactionState.ONGOING
    assert world.add(who, NEW)[0] in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize("seed", range(60))
def test_no_walk_through_the_last_epochs_hands_out_an_epoch_twice_or_leaves_a_transaction_open(seed: int) -> None:
    chance = random.Random(seed)
    epoch = chance.randint(32_760, 32_767)
    world = World({"x": msgspec.structs.replace(ongoing(epoch), client_version=chance.choice((OLD, NEW)))})
    known = [Identity(OK, 7, epoch)]
    given: set[tuple[int, int]] = set()

    def note(found: Any, of: Identity | None) -> None:
        if not isinstance(found, Identity) or found.error is not OK:
            return
        who = (found.producer_id, found.producer_epoch)
        assert found.producer_epoch <= 32_766 or found == of
        if of is None:
            assert who not in given, "two producers have the same epoch"
        given.add(who)
        known.append(found)

    for _ in range(120):
        version, who = chance.choice((OLD, NEW)), chance.choice(known[-3:])
        match chance.randrange(8):
            case 0:
                note(world.init(f"init {len(known)}"), None)
            case 1:
                note(world.init("again", who.producer_id, who.producer_epoch), who)
            case 2 | 3:
                world.add(known[-1], version)
            case 4 | 5:
                note(world.end(who, chance.random() < 0.5, version), who)
            case 6:
                world.advance(chance.choice((300, 60_000)))
            case _:
                world = world.crash()
        if chance.random() < 0.8:
            world.written()
        assert world.image.producer_epoch <= 32_767
    world.advance(60_000)
    world.written()
    assert world.image.partitions == frozenset(), "a transaction is open for ever"


@pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
def test_a_wall_clock_that_is_set_neither_keeps_a_transaction_open_nor_aborts_it(step_ms: int) -> None:
    world, who = begun()
    world.wall_ms += step_ms
    assert world.add(who, places=(("u", 0),)) == (OK,)
    world.advance(59_000)
    assert world.markers == []
    world.advance(1_000)
    assert [one.commits for one in world.markers] == [False]


def test_a_coordinator_that_loads_with_a_clock_behind_waits_for_one_timeout_at_most() -> None:
    world, _ = begun()
    after = World(world.stored, wall_ms=WALL_MS - 86_400_000)
    after.advance(60_000)
    assert [one.commits for one in after.markers] == [False]


def test_transactions_that_time_out_are_looked_for_at_intervals() -> None:
    world = World(settings=TransactionSettings(abort_interval_ms=10_000))
    world.us = 4_000_000
    who = world.init(timeout_ms=5000)
    world.add(who)
    assert world.core.deadline_us == 10_000_000
    world.us, world.wall_ms = 10_000_000, world.wall_ms + 6000
    world.step(DeadlinePassed())
    assert [one.commits for one in world.markers] == [False]
    world.written()
    later = world.init(timeout_ms=5000)
    world.add(later)
    assert world.core.deadline_us == 20_000_000


def test_a_producer_without_transactions_gets_another_id_at_the_end_of_its_epochs() -> None:
    world = World({"x": Image(7, 32_766, 60_000, TransactionState.COMPLETE_COMMIT)})
    assert world.init() == Identity(OK, 101, 0)
    assert world.init("again", 7, 32_766).error is ErrorCode.PRODUCER_FENCED, "the first had not said that it recovers"


def test_a_producer_that_recovers_is_told_the_same_epoch_twice() -> None:
    world = World()
    who = world.init()
    assert world.init("a", who.producer_id, 0) == Identity(OK, 101, 1)
    assert world.init("b", who.producer_id, 0) == Identity(OK, 101, 1), "its first answer was lost"
    assert world.init("c") == Identity(OK, 101, 2)
    assert world.init("d", who.producer_id, 1).error is ErrorCode.PRODUCER_FENCED


def test_a_partition_is_verified_only_while_its_transaction_is_open() -> None:
    world, who = begun()
    assert world.add(who, verify_only=True, places=(("t", 0), ("u", 0))) == (OK, ErrorCode.TRANSACTION_ABORTABLE)
    world.end(who)
    assert world.add(who, verify_only=True) is None, "it waits for the end"
    world.written()
    assert world.answers["add"] == (ErrorCode.TRANSACTION_ABORTABLE,) * 2
    other = Identity(OK, 5, 0)
    assert world.add(other, verify_only=True) == (ErrorCode.INVALID_PRODUCER_ID_MAPPING,) * 2


def test_partitions_that_are_added_again_are_not_written_again() -> None:
    world, who = begun()
    world.hold = True
    assert world.add(who) == (OK, OK)
    assert world.unsettled == []


def test_who_waits_too_long_is_told_to_ask_again() -> None:
    world, who = begun()
    world.end(who)
    assert world.add(who) is None
    world.advance(PATIENCE_US // 1000 + 1)
    assert world.answers["add"] == (ErrorCode.CONCURRENT_TRANSACTIONS,) * 2


def test_a_failed_write_fails_its_request_and_changes_nothing() -> None:
    world, who = begun()
    world.fails = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.end(who).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.image.state is TransactionState.ONGOING
    world.fails = OK
    assert world.end(who).error is OK
    world.fails = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.written()
    assert world.image.state is TransactionState.PREPARE_COMMIT
    world.fails = OK
    world.advance(1_000)
    assert world.image.state is TransactionState.COMPLETE_COMMIT, "it is tried again"


def test_a_first_producer_whose_record_fails_leaves_nothing() -> None:
    world = World()
    world.fails = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.core.transactions == {}


def test_bad_requests_are_refused() -> None:
    world = World()
    for timeout_ms in (0, -1, 900_001):
        assert world.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert world.init("half", 5, -1).error is ErrorCode.INVALID_REQUEST
    assert world.end(Identity(OK, 1, 0)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.step(InitProducer("empty", "", 60_000))
    assert world.answers["empty"].error is ErrorCode.INVALID_REQUEST


EIGHT_DAYS_MS = 8 * 24 * 3600 * 1000


def test_an_id_that_is_not_used_expires_and_one_with_a_transaction_does_not() -> None:
    world, who = begun()
    world.us += EIGHT_DAYS_MS * 1000
    world.step(Expire(("x",)))
    assert "x" in world.stored
    world.end(who)
    world.written()
    world.us += EIGHT_DAYS_MS * 1000
    world.step(Expire(("x",)))
    assert world.stored == {}
    assert world.core.transactions == {}
    assert world.init("anew").producer_id == 102


def test_an_id_expires_by_the_time_that_has_passed_and_not_by_the_wall_clock() -> None:
    world, who = begun()
    world.end(who)
    world.written()
    world.wall_ms += EIGHT_DAYS_MS
    world.step(Expire(("x",)))
    assert "x" in world.stored, "the clock was set ahead"
    world.wall_ms -= 2 * EIGHT_DAYS_MS
    world.us += EIGHT_DAYS_MS * 1000
    world.step(Expire(("x",)))
    assert world.stored == {}, "the clock was set back"


def test_an_id_of_an_earlier_life_has_its_age() -> None:
    before, who = begun()
    before.end(who)
    before.written()
    world = World(before.stored, wall_ms=before.wall_ms + EIGHT_DAYS_MS)
    world.step(Expire(("x",)))
    assert world.stored == {}


def test_reminders_do_not_pile_up_with_every_transaction() -> None:
    world = World()
    who = world.init()
    for _ in range(100):
        world.add(who)
        world.end(who)
        world.written()
    assert len(world.core._deadlines) <= 3
    world.advance(60_001)
    assert world.core.deadline_us is None


def test_unload_gives_back_who_waits() -> None:
    world, who = begun()
    world.end(who)
    world.add(who)
    world.hold = True
    world.step(InitProducer("other", "y", 60_000, spare_id=5))
    assert set(world.core.unload()) == {"add", "other"}
