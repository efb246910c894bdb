"""The checker finds each kind of planted lie, and nothing in a history that a correct log can have."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.testing import history_check
from millstream.testing.history import (
    Commit,
    Committed,
    History,
    LogStart,
    Outcome,
    Poll,
    Reset,
    Send,
    TopicChange,
    TopicPartition,
    TopicsSeen,
    Trim,
)
from millstream.testing.history_check import HistoryBroken, check, verify

P = TopicPartition("t", 0)
OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


def send(value, offset=-1, began=0, ended=None, outcome=OK, process="p", idempotent=True):
    return Send(process, P, value, idempotent, began, began + 1 if ended is None else ended, outcome, offset)


def poll(*records, at=1000, process="c", group=""):
    return Poll(process, group, P, list(records), at)


def kinds(*operations, **options):
    return {anomaly.kind for anomaly in check(History.of_operations(operations), **options)}


GOOD = (
    send("a", 0, 10),
    send("b", 1, 20),
    send("c", 2, 30),
    send("d", outcome=FAIL, began=40),
    send("e", outcome=INFO, began=50),
    send("f", outcome=INFO, began=60),
    poll((0, "a"), (1, "b"), (2, "c"), (3, "f")),
)


def test_a_correct_history_is_clean():
    assert kinds(*GOOD) == set()
    verify(History.of_operations(GOOD))


def test_an_unknown_send_may_appear_or_not():
    assert kinds(send("a", outcome=INFO), send("b", 1, 5), poll((0, "a"), (1, "b"))) == set()
    assert kinds(send("a", outcome=INFO), send("b", 0, 5), poll((0, "b"))) == set()


def test_an_acknowledged_value_that_was_passed_over_is_lost():
    assert kinds(send("a", 0), send("b", 1, 5), poll((1, "b"))) == {"lost"}


def test_an_acknowledged_value_whose_offset_went_to_another_is_lost_and_inconsistent():
    found = kinds(send("a", 0), send("b", 0, 5, process="q"), poll((0, "b")))
    assert {"lost", "inconsistent"} <= found


def test_an_acknowledged_value_at_the_end_that_nobody_saw_is_unseen():
    assert kinds(send("a", 0), send("b", 1, 5), poll((0, "a"))) == {"unseen"}
    assert kinds(send("a", 0)) == {"unseen"}


def test_what_retention_removed_is_not_lost():
    assert kinds(send("a", 0), send("b", 1, 5), poll((1, "b")), log_starts={P: 1}) == set()


def test_two_readers_that_see_different_values_at_one_offset():
    assert "inconsistent" in kinds(send("a", 0), send("b", outcome=INFO), poll((0, "a")), poll((0, "b"), process="d"))


def test_a_value_twice_is_a_duplicate_only_for_an_idempotent_producer():
    records = poll((0, "a"), (1, "a"))
    assert kinds(send("a", 0), records) == {"duplicate"}
    assert kinds(send("a", 0, idempotent=False), records) == set()


def test_an_acknowledgement_that_names_another_offset_than_the_log():
    assert "duplicate" in kinds(send("a", 0), poll((5, "a")))


def test_a_value_nobody_sent_is_a_phantom():
    assert kinds(send("a", 0), poll((0, "a"), (1, "x"))) == {"phantom"}


def test_a_value_that_was_sent_to_another_partition_is_a_phantom():
    other = Send("p", TopicPartition("t", 1), "a", True, 0, 1, INFO, -1)
    assert kinds(other, poll((0, "a"))) == {"phantom"}


def test_a_failed_send_must_not_be_read():
    assert kinds(send("a", outcome=FAIL), poll((0, "a"))) == {"failed-visible"}


def test_sends_of_one_producer_keep_their_order():
    operations = (send("a", 1, 10, 100), send("b", 0, 20, 100), poll((0, "b"), (1, "a")))
    assert kinds(*operations) == {"reordered"}
    loose = (send("a", 1, 10, 100, idempotent=False), send("b", 0, 20, 100, idempotent=False), operations[2])
    assert kinds(*loose) == set()


def test_unknown_sends_keep_their_order_too():
    sends = (send("a", outcome=INFO, began=10), send("b", outcome=INFO, began=20))
    assert kinds(*sends, poll((0, "b"), (1, "a"))) == {"reordered"}


def test_a_send_after_an_acknowledgement_stands_after_it():
    first, second = send("a", 5, 10, 20, process="p"), send("b", 4, 30, 40, process="q")
    assert kinds(first, second, poll((4, "b"), (5, "a"))) == {"stale-offset"}
    concurrent = send("b", 4, 15, 40, process="q")
    assert kinds(first, concurrent, poll((4, "b"), (5, "a"))) == set()


def test_a_consumer_that_goes_back_without_having_been_set_back():
    sends = (send("a", 0, 1), send("b", 1, 2))
    first, again = poll((0, "a"), (1, "b"), at=100), poll((0, "a"), at=200)
    assert kinds(*sends, first, again) == {"poll-back"}
    assert kinds(*sends, first, Reset("c", [P], 150), again) == set()
    assert kinds(*sends, first, Reset("other", [P], 150), again) == {"poll-back"}


def test_a_consumer_that_skips_a_record_that_another_saw():
    sends = (send("a", 0, 1), send("b", 1, 2), send("c", 2, 3))
    whole = poll((0, "a"), (1, "b"), (2, "c"), process="d")
    assert kinds(*sends, whole, poll((0, "a"), (2, "c"))) == {"poll-skip"}
    assert kinds(*sends, whole, poll((0, "a"), at=100), poll((2, "c"), at=200)) == {"poll-skip"}


def test_a_hole_in_a_dense_log():
    operations = (send("a", 0), send("b", 2, 5), poll((0, "a"), (2, "b")))
    assert kinds(*operations) == {"hole"}
    assert kinds(*operations, dense=False) == set()


def commit(next_offset, began, outcome=OK, group="g"):
    return Commit("c", group, P, next_offset, began, began + 1, outcome)


def committed(next_offset, began, group="g"):
    return Committed(group, P, next_offset, began, began + 1)


SENDS = tuple(send(value, offset, offset) for offset, value in enumerate("abcdefgh"))
READ = poll(*enumerate("abcdefgh"), group="g")


def test_commits_that_are_kept_are_clean():
    operations = (
        commit(2, 10),
        committed(2, 20),
        commit(5, 30, INFO),
        committed(2, 40),
        committed(5, 50),
        commit(7, 60),
    )
    assert kinds(*SENDS, READ, *operations, committed(7, 70)) == set()


def test_a_commit_that_was_acknowledged_is_not_forgotten():
    assert kinds(*SENDS, READ, commit(2, 10), commit(5, 20), committed(2, 30)) == {"commit-lost"}
    assert kinds(*SENDS, READ, commit(2, 10), committed(-1, 20)) == {"commit-lost"}


def test_an_answer_about_a_commit_is_not_taken_back():
    assert kinds(*SENDS, READ, commit(2, 10), commit(5, 20, INFO), committed(5, 30), committed(2, 40)) == {
        "commit-lost"
    }


def test_a_committed_offset_that_nobody_committed():
    assert kinds(*SENDS, READ, commit(2, 10), committed(6, 20)) == {"commit-phantom"}
    assert kinds(*SENDS, READ, commit(6, 10, FAIL), committed(6, 20)) == {"commit-phantom"}
    assert kinds(*SENDS, READ, commit(2, 10), committed(6, 20, group="other")) == {"commit-phantom"}


def test_a_group_that_commits_past_records_it_was_not_given():
    partial = poll((0, "a"), (1, "b"), group="g")
    everything = poll(*enumerate("abcdefgh"), process="d")
    assert kinds(*SENDS, everything, partial, commit(4, 10)) == {"group-skipped"}
    assert kinds(*SENDS, everything, partial, commit(2, 10)) == set()


def keyed(value, key, offset=-1, began=0, outcome=OK):
    return Send("p", P, value, True, began, began + 1, outcome, offset, key)


def test_what_compaction_replaced_is_not_lost_and_leaves_no_hole():
    sends = (keyed("a1", "a", 0, 1), keyed("b1", "b", 1, 5), keyed("a2", "a", 2, 10))
    assert kinds(*sends, poll((1, "b1"), (2, "a2"))) == set()
    early = poll((0, "a1"), (1, "b1"), (2, "a2"), process="d", at=500)
    assert kinds(*sends, early, poll((0, "a1"), (2, "a2"))) == set()


def test_the_newest_value_of_a_key_is_lost_if_it_is_not_there():
    sends = (keyed("a1", "a", 0, 1), keyed("b1", "b", 1, 5), keyed("a2", "a", 2, 10), keyed("c1", "c", 3, 15))
    assert kinds(*sends, poll((1, "b1"), (3, "c1"))) == {"lost"}
    assert kinds(*sends, poll((0, "a1"), (2, "a2"), (3, "c1"))) == {"lost"}
    assert kinds(*sends, poll((1, "b1"), (2, "a2"))) == {"unseen"}


def topic(exists, began, outcome=OK, name="n"):
    return TopicChange(name, exists, began, began + 1, outcome)


def listed(began, *names):
    return TopicsSeen(list(names), began, began + 1)


def test_a_topic_is_there_from_its_creation_to_its_deletion():
    whole = (listed(0), topic(True, 10), listed(20, "n"), topic(False, 30), listed(40))
    assert kinds(*whole) == set()
    unknown = (topic(True, 10, INFO), listed(20), listed(30, "n"), topic(False, 40, INFO), listed(50, "n"), listed(60))
    assert kinds(*unknown, listed(70, "somebody else's")) == set()


def test_a_topic_that_was_created_is_not_forgotten():
    assert kinds(topic(True, 10), listed(20)) == {"topic-lost"}
    assert kinds(topic(True, 10), listed(20), topic(False, 30)) == {"topic-lost"}
    assert kinds(topic(True, 10), topic(False, 15, FAIL), listed(20)) == {"topic-lost"}


def test_a_topic_that_was_deleted_does_not_come_back():
    assert kinds(topic(True, 10), topic(False, 20), listed(30, "n")) == {"topic-back"}


def test_a_topic_that_nobody_has_created_yet():
    assert kinds(listed(0, "n"), topic(True, 10)) == {"topic-phantom"}
    assert kinds(topic(True, 10, FAIL), listed(20, "n")) == {"topic-phantom"}


def trim(before, began, outcome=OK):
    return Trim(P, before, began, began + 1, outcome)


def start(offset, began):
    return LogStart(P, offset, began, began + 1)


def test_a_log_starts_where_records_were_deleted_up_to():
    asked = (start(0, 0), trim(3, 10), start(3, 20), trim(5, 30, INFO), start(3, 40), start(5, 50))
    assert kinds(*asked) == set()
    assert kinds(start(0, 0), start(7, 10)) == set()  # retention


def test_a_log_start_does_not_go_back():
    assert kinds(trim(3, 10), start(0, 20)) == {"start-back"}
    assert kinds(trim(3, 10), trim(5, 20, INFO), start(5, 30), start(3, 40)) == {"start-back"}
    assert kinds(start(7, 0), start(6, 10)) == {"start-back"}


def test_a_log_start_behind_every_deletion_that_was_asked_for():
    assert kinds(trim(3, 10), start(4, 20)) == {"start-phantom"}
    assert kinds(trim(3, 10), trim(9, 15, FAIL), start(9, 20)) == {"start-phantom"}


LIES = {
    "inconsistent": (send("a", 0), send("b", outcome=INFO), poll((0, "a")), poll((0, "b"), process="d")),
    "duplicate": (send("a", 0), poll((0, "a"), (1, "a"))),
    "phantom": (send("a", 0), poll((0, "a"), (1, "x"))),
    "failed-visible": (send("a", outcome=FAIL), poll((0, "a"))),
    "lost": (send("a", 0), send("b", 1, 5), poll((1, "b"))),
    "unseen": (send("a", 0),),
    "reordered": (send("a", 1, 10, 100), send("b", 0, 20, 100), poll((0, "b"), (1, "a"))),
    "stale-offset": (send("a", 5, 10, 20), send("b", 4, 30, 40, process="q"), poll((4, "b"), (5, "a"))),
    "poll-back": (*SENDS, poll((0, "a"), (1, "b")), poll(*enumerate("abcdefgh"), at=2000)),
    "poll-skip": (*SENDS, READ, poll((0, "a"), (2, "c"), process="d")),
    "hole": (send("a", 0), send("b", 2, 5), poll((0, "a"), (2, "b"))),
    "commit-lost": (*SENDS, READ, commit(2, 10), committed(-1, 20)),
    "commit-phantom": (*SENDS, READ, commit(2, 10), committed(6, 20)),
    "group-skipped": (*SENDS, READ, poll((0, "a"), group="h", process="d"), commit(4, 10, group="h")),
    "topic-lost": (topic(True, 10), listed(20)),
    "topic-back": (topic(True, 10), topic(False, 20), listed(30, "n")),
    "topic-phantom": (listed(0, "n"), topic(True, 10)),
    "start-back": (trim(3, 10), start(0, 20)),
    "start-phantom": (trim(3, 10), start(4, 20)),
}
"""A planted lie of every kind that the checker says it finds."""


def test_every_kind_of_lie_that_the_checker_names_is_planted_here():
    named = re.findall(r"^- ``([a-z-]+)``:", history_check.__doc__, re.MULTILINE)
    assert sorted(named) == sorted(LIES)
    for kind, operations in LIES.items():
        assert kinds(*operations) == {kind}, kind


def test_verify_names_what_it_found():
    with pytest.raises(HistoryBroken, match=r"lost in t/0: a of p, acknowledged at 0; polled up to 1"):
        verify(History.of_operations((send("a", 0), send("b", 1, 5), poll((1, "b")))))


def test_recording_gives_what_the_checker_takes(tmp_path):
    history = History()
    first = history.send("p", "t", 0, "a")
    history.send("p", "t", 0, "b")
    history.sent(first, OK, 0)
    history.reset("c", [("t", 0)])
    history.polled("c", "t", 0, [(0, "a")], group="g")
    history.done(history.commit("c", "g", "t", 0, 1), OK)
    history.committed("g", "t", 0, 1, began_ns=history.operations[-1].ended_ns)
    assert check(history) == []
    history.save(tmp_path / "history")
    again = History.load(tmp_path / "history")
    assert again.operations == history.operations
    history.sent(history.send("p", "t", 0, "c"), OK, 0)
    assert {a.kind for a in check(history)} == {"inconsistent", "lost"}


@st.composite
def correct_logs(draw):
    """A history as a correct log makes it: random producers, unknown sends that stand or not, several readers."""
    log, operations = [], []
    now = 0
    for i in range(draw(st.integers(1, 30))):
        process = draw(st.sampled_from(["p", "q"]))
        outcome = draw(st.sampled_from([OK, OK, OK, INFO, FAIL]))
        value = f"v{i}"
        now += 2
        stands = outcome is OK or (outcome is INFO and draw(st.booleans()))
        if stands:
            log.append(value)
        operations.append(send(value, len(log) - 1 if outcome is OK else -1, now, now + 1, outcome, process))
    for reader in range(draw(st.integers(1, 3))):
        start = 0 if reader == 0 else draw(st.integers(0, len(log)))
        records = list(enumerate(log))[start:]
        while records:
            size = draw(st.integers(1, len(records)))
            now += 1
            operations.append(poll(*records[:size], at=now, process=f"c{reader}"))
            records = records[size:]
    return operations, log


@given(correct_logs())
def test_no_false_alarm_on_correct_logs(made):
    operations, _ = made
    assert check(History.of_operations(operations)) == []


@given(correct_logs(), st.data())
def test_a_log_that_loses_an_acknowledged_record_is_always_found(made, data):
    operations, _ = made
    acknowledged = [op for op in operations if isinstance(op, Send) and op.outcome is OK]
    if not acknowledged:
        return
    victim = data.draw(st.sampled_from(acknowledged)).value

    def without(records):
        return [(o, v) for o, v in records if v != victim]

    broken = [
        Poll(o.process, o.group, o.place, without(o.records), o.at_ns) if isinstance(o, Poll) else o for o in operations
    ]
    assert {a.kind for a in check(History.of_operations(broken))} & {"lost", "unseen"}
