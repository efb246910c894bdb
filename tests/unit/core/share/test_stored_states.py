"""What the coordinator of share partitions stores, refuses and forgets."""

import itertools

from millstream.core.share.batches import Batch, RecordState, merge
from millstream.core.share.stored import (
    BEHIND_MAX,
    QUIET_US,
    Delete,
    Image,
    Initialize,
    Read,
    Report,
    StoredStates,
    Summary,
    Update,
)
from millstream.model.error_code import ErrorCode

AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
KEY = ("g", b"t" * 16, 0)
NONE = ErrorCode.NONE


class Log:
    """A coordinator and its log."""

    def __init__(self, records=(), updates_max=500):
        self.records = list(records)
        self.core = StoredStates(updates_max)
        for at, (key, change) in enumerate(self.records):
            self.core.replay(key, change, at)
        self.core.loaded(0)

    def settle(self, out, error=NONE, now=1):
        answers = list(out.answers)
        for write in out.writes:
            if error is NONE:
                self.records.append((write.key, write.change))
            more = self.core.persisted(write.receipt, error, len(self.records) - 1, now, 1)
            answers += self.settle(more)
        return answers

    def ask(self, request, error=NONE, now=1):
        ((_, answer),) = self.settle(self.core.ask(request, now, 1), error, now)
        return answer

    def begin(self, start=0, epoch=1):
        return self.ask(Initialize("t", KEY, epoch, start)).error

    def write(self, start, *batches, leader=-1, epoch=1, **more):
        return self.ask(Report("t", KEY, epoch, leader, start, 0, list(batches)), **more).error

    def read(self, leader=-1):
        return self.ask(Read("t", KEY, leader))


def test_what_was_never_initialised_cannot_be_read_or_written():
    log = Log()
    assert log.read().error is ErrorCode.INVALID_REQUEST
    assert log.write(0) is ErrorCode.INVALID_REQUEST
    assert log.ask(Summary("t", KEY)).image is None
    assert log.ask(Delete("t", KEY)).error is NONE
    assert log.records == []


def test_a_log_is_read_back_as_it_was_written():
    log = Log(updates_max=2)
    log.begin()
    for offset in range(7):
        assert log.write(0, Batch(10 + offset, 10 + offset, ACKNOWLEDGED, 1)) is NONE
    kinds = [type(change) for _, change in log.records]
    assert kinds == [Image, Update, Update, Image, Update, Update, Image, Update]
    image = log.read().image
    assert image.batches == [Batch(10, 16, ACKNOWLEDGED, 1)]
    assert Log(log.records).read().image == image
    assert log.core.oldest_needed == 6


def test_old_epochs_are_fenced_and_newer_ones_of_a_write_are_not_adopted():
    log = Log()
    log.begin(epoch=3)
    assert log.read(leader=5).image.leader_epoch == 5
    assert log.write(0, leader=4, epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    assert log.read(leader=4).error is ErrorCode.FENCED_LEADER_EPOCH
    assert log.write(0, leader=5, epoch=2) is ErrorCode.FENCED_STATE_EPOCH
    assert log.begin(epoch=2) is ErrorCode.FENCED_STATE_EPOCH
    assert log.write(0, leader=9, epoch=9) is NONE
    image = log.read().image
    assert (image.state_epoch, image.leader_epoch) == (3, 5)
    assert Log(log.records).read().image == image


def test_a_report_on_a_state_that_was_deleted_and_made_again_is_fenced():
    log = Log()
    log.begin()
    old = log.read().image.created_ms
    log.ask(Delete("t", KEY))
    log.settle(log.core.ask(Initialize("t", KEY, 1, 0), 1, old + 1))
    done = [Batch(0, 9, ACKNOWLEDGED, 1)]
    assert log.ask(Report("t", KEY, 1, -1, 10, 0, done, old)).error is ErrorCode.FENCED_STATE_EPOCH
    assert log.read().image.start == 0
    assert log.ask(Report("t", KEY, 1, -1, 10, 0, done, old + 1)).error is NONE


def test_a_start_goes_back_only_when_the_group_says_so():
    log = Log()
    log.begin()
    log.write(10, Batch(12, 13, ACKNOWLEDGED, 1))
    log.write(5, Batch(6, 7, AVAILABLE, 1))
    image = log.read().image
    assert (image.start, image.batches) == (10, [Batch(12, 13, ACKNOWLEDGED, 1)])
    assert log.begin(start=2, epoch=2) is NONE
    image = log.read().image
    assert (image.start, image.batches, image.complete) == (2, [], 0)


def test_a_repeated_initialize_resets_nothing():
    log = Log()
    log.begin(start=-1, epoch=4)
    log.write(10, epoch=4)
    assert log.begin(start=-1, epoch=4) is NONE
    assert log.read().image.start == 10
    assert log.begin(start=-1, epoch=5) is NONE
    assert log.read().image.start == -1


def test_a_failed_record_is_taken_back():
    log = Log()
    log.begin()
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert log.write(4, Batch(6, 7, ACKNOWLEDGED, 1), error=away) is away
    assert log.read().image.start == 0
    assert log.write(0, Batch(8, 8, ACKNOWLEDGED, 1)) is NONE
    assert log.read().image.batches == [Batch(8, 8, ACKNOWLEDGED, 1)]


def test_requests_wait_for_an_initialize_that_is_on_its_way():
    log = Log()
    first = log.core.ask(Initialize("first", KEY, 1, 0), 1, 1)
    assert not log.core.ask(Read("second", KEY, 7), 1, 1).writes
    answers = dict(log.settle(first, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert answers["first"].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answers["second"].error is ErrorCode.INVALID_REQUEST
    log.begin()
    gone = log.core.ask(Delete("third", KEY), 1, 1)
    log.core.ask(Initialize("fourth", KEY, 1, 5), 1, 1)
    log.core.ask(Read("fifth", KEY, 7), 1, 1)
    answers = dict(log.settle(gone))
    assert [answers[token].error for token in ("third", "fourth", "fifth")] == [NONE, NONE, NONE]
    assert answers["fifth"].image.start == 5


def test_a_read_waits_for_what_is_being_written():
    log = Log()
    log.begin()
    write = log.core.ask(Report("w", KEY, 1, -1, 3, 0, []), 1, 1)
    assert not log.core.ask(Read("r", KEY, -1), 1, 1).answers
    answers = dict(log.settle(write))
    assert answers["r"].image.start == 3


def test_what_was_deleted_is_gone_and_needs_no_log():
    log = Log()
    log.begin()
    assert log.ask(Delete("t", KEY)).error is NONE
    assert log.records[-1] == (KEY, None)
    assert log.core.oldest_needed is None
    assert Log(log.records).read().error is ErrorCode.INVALID_REQUEST


def test_unloading_names_everybody_who_waits():
    log = Log()
    log.begin()
    log.core.ask(Report("w", KEY, 1, -1, 3, 0, []), 1, 1)
    log.core.ask(Read("r", KEY, -1), 1, 1)
    log.core.ask(Delete("d", KEY), 1, 1)
    log.core.ask(Summary("s", KEY), 1, 1)
    assert list(log.core.unload()) == ["w", "r", "d", "s"]


def test_quiet_share_partitions_and_those_far_behind_get_a_snapshot():
    log = Log()
    log.begin()
    log.write(3, now=10)
    assert not log.core.time_passed(QUIET_US, 1).writes
    log.settle(log.core.time_passed(QUIET_US + 10, 2))
    assert isinstance(log.records[-1][1], Image)
    assert log.core.oldest_needed == 2
    assert not log.core.time_passed(2 * QUIET_US, 1).writes
    other = ("h", b"t" * 16, 0)
    log.core.replay(other, log.records[-1][1], BEHIND_MAX + 3)
    log.settle(log.core.time_passed(2 * QUIET_US, 1))
    assert [key for key, _ in log.records] == [KEY] * 4


def test_reports_merge_to_the_same_in_any_order():
    reports = [
        Batch(0, 5, AVAILABLE, 1),
        Batch(3, 8, ACKNOWLEDGED, 1),
        Batch(2, 3, ARCHIVED, 2),
        Batch(7, 12, AVAILABLE, 3),
        Batch(20, 20, AVAILABLE, 0),
    ]
    merged = []
    for order in itertools.permutations(reports):
        state = []
        for report in order:
            state = merge(state, [report], 1)
        by_offset = {o: (b.state, b.count) for b in state for o in range(b.first, b.last + 1)}
        merged.append(by_offset)
    expected = {}
    for report in reports:
        for offset in range(max(report.first, 1), report.last + 1):
            mine = (report.count, report.state)
            expected[offset] = max(expected.get(offset, (-1, AVAILABLE)), mine)
    assert all(one == {o: (state, count) for o, (count, state) in expected.items()} for one in merged)
