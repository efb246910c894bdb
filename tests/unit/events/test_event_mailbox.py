"""What a consumer has received goes to the pulls that still wait, in order."""

import pytest

from millstream.errors import Rejected
from millstream.events.event import Event
from millstream.events.mailbox import Mailbox


def test_a_pull_that_was_given_up_is_passed_over():
    mailbox = Mailbox()
    pulls = [mailbox.pull() for _ in range(3)]
    assert pulls[1].cancel()
    mailbox.put([Event(0), Event(1), Event(2)])
    assert [pulls[0].result(0).id, pulls[2].result(0).id, mailbox.pull().result(0).id] == [0, 1, 2]


def test_a_program_that_polls_for_ever_costs_no_memory():
    mailbox = Mailbox()
    first = mailbox.pull()
    for _ in range(10_000):
        assert mailbox.pull().cancel()
    assert len(mailbox._waiting) < 100
    mailbox.put([Event(7)])
    assert first.result(0).id == 7


def test_failures_and_the_end_come_in_their_place():
    mailbox = Mailbox()
    taken = []
    error = Rejected("no")
    mailbox.put([Event(0), error], lambda: taken.append("first"))
    mailbox.put([Event(1)], lambda: taken.append("second"))
    mailbox.end(Event(None))
    mailbox.end(Rejected("later"))
    assert mailbox.pull().result(0).id == 0
    assert taken == []
    assert mailbox.pull().exception(0) is error
    assert taken == ["first"]
    assert [mailbox.pull().result(0).id for _ in range(3)] == [1, None, None]
    assert taken == ["first", "second"]


def test_what_is_here_is_taken_at_once_unless_a_pull_waits():
    mailbox = Mailbox()
    assert mailbox.take() is None
    error = Rejected("no")
    mailbox.put([Event(0), error])
    assert mailbox.take().id == 0
    with pytest.raises(Rejected, match="no"):
        mailbox.take()
    waiting = mailbox.pull()
    mailbox.put([Event(1)])
    assert mailbox.take() is None
    assert waiting.result(0).id == 1


def test_events_of_one_partition_are_dropped():
    mailbox = Mailbox()
    taken = []
    for partition in (1, 2, 1):
        mailbox.put([Event(0, partition), Event(1, partition)], lambda partition=partition: taken.append(partition))
    mailbox.drop(1)
    assert taken == [1, 1]
    assert len(mailbox) == 2
    assert [mailbox.take().partition, mailbox.pull().result(0).partition] == [2, 2]
    assert taken == [1, 1, 2]
