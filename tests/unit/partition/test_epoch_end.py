"""The table of ``partition.read.epoch_end``, as Apache Kafka 4.3.1's leader epoch cache answers."""

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.partition.read.epoch_end import epoch_end


def partition(epochs: list[tuple[int, int]], leader_epoch: int, start: int = 0, end: int = 100) -> Any:
    log = SimpleNamespace(leader_epochs=epochs, start_offset=start, next_offset=end)
    group = SimpleNamespace(term=leader_epoch)
    made = cast(
        Any, SimpleNamespace(closed=False, refusal=ErrorCode.NONE, leader_epoch=leader_epoch, log=log, group=group)
    )
    made.serving = partial(Partition.serving, made)
    return made


WRITTEN = [(1, 10), (3, 40), (4, 70)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (0, -1, -1)),
        (0, (0, 0, 10)),
        (1, (0, 1, 40)),
        (2, (0, 1, 40)),
        (3, (0, 3, 70)),
        (4, (0, 4, 100)),
        (5, (0, -1, -1)),
    ],
)
def test_every_epoch_ends_where_the_next_one_began(asked: int, answer: tuple[int, int, int]) -> None:
    assert epoch_end(partition(WRITTEN, leader_epoch=4), -1, asked) == answer


def test_epochs_without_a_record_are_passed_over() -> None:
    known = [(1, 0), (3, 100), (7, 100), (8, 250)]
    assert epoch_end(partition(known, leader_epoch=8, end=300), -1, 3) == (0, 3, 100)
    assert epoch_end(partition(known, leader_epoch=8, end=300), -1, 7) == (0, 7, 250)
    assert epoch_end(partition(known, leader_epoch=8, end=300), -1, -5) == (0, -5, 0)


def test_a_leader_knows_its_own_epoch_before_its_first_record() -> None:
    restarted = partition(WRITTEN, leader_epoch=6)
    assert epoch_end(restarted, -1, 6) == (0, 6, 100)
    assert epoch_end(restarted, -1, 5) == (0, 4, 100)
    assert epoch_end(restarted, -1, 4) == (0, 4, 100)
    assert epoch_end(restarted, -1, 3) == (0, 3, 70)


def test_an_empty_log_answers_for_its_leader_and_for_older_epochs() -> None:
    empty = partition([], leader_epoch=2, end=0)
    assert epoch_end(empty, -1, 2) == (0, 2, 0)
    assert epoch_end(empty, -1, 0) == (0, 0, 0)


def test_epochs_whose_records_were_deleted_end_at_the_log_start() -> None:
    trimmed = partition(WRITTEN, leader_epoch=4, start=50)
    assert epoch_end(trimmed, -1, 1) == (0, 1, 50)
    assert epoch_end(trimmed, -1, 2) == (0, 2, 50)
    assert epoch_end(trimmed, -1, 3) == (0, 3, 70)


def test_callers_with_another_idea_of_the_leader_are_told() -> None:
    led = partition(WRITTEN, leader_epoch=4)
    assert epoch_end(led, 3, 1) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert epoch_end(led, 5, 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(led, 4, 1) == (0, 1, 40)
    led.closed, led.refusal = True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert epoch_end(led, 4, 1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
