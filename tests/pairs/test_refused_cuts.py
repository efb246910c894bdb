"""Unclean cuts of replicas whose files do not tell enough: what the store tells, and what is refused in words."""

from collections import Counter
from unittest.mock import patch

import pytest

from millstream.errors import MillstreamError, Unavailable
from millstream.telemetry.log import Log
from sim.engine.objects import Faults
from sim.pairs import cuts
from sim.pairs.history import _listening
from sim.pairs.judge import judge
from sim.pairs.kinds import KINDS, TOPIC
from sim.pairs.operations import fill
from sim.pairs.resting import rest
from sim.pairs.several import Several


def damaged(several: Several, named) -> None:
    """The chunks of a replica cannot be read; the others have failed."""
    partition = named.table.find(TOPIC, 0)
    for one in [each for each in several.members if each is not named]:
        several.fail(one)
    done: list[int] = []
    named.shard.storage.checkpoint(lambda: done.append(1))
    several.until(lambda: bool(done), "a checkpoint does not end")
    named.crash(torn=False)
    directory = partition.log.directory.rpartition("/")[0]
    for path, size in named.disk.files():
        if path.startswith(directory):
            named.disk.damage(path, 0, b"\xff" * size)
    named.start()


def asked(several: Several, member) -> object:
    """The answer to a cut, once it is none that asks for another try."""
    for _ in range(60):
        answers: list[object] = []
        if member.is_up and member.is_ready:
            cuts._ask(member, answers)
            several.run(lambda answers=answers: bool(answers), 30_000_000)
        if answers and not (isinstance(answers[0], MillstreamError) and "try again" in answers[0].message):
            return answers[0]
        several.wait(1_000_000)
    raise AssertionError("no answer")


def test_damaged_chunks_are_refused_and_another_replica_is_taken() -> None:
    lines: list[str] = []

    def write(self: Log, level: object, message: str, args: tuple[object, ...], detail: str = "") -> None:
        lines.append(message % args if args else message)

    with patch.object(Log, "_write", write):
        several = Several("refused", KINDS["events, three replicas"])
        fill(several, 12)
        several.until(lambda: not several.lag(TOPIC, 0), "replicas do not catch up")
        named, other = several.members[:2]
        damaged(several, named)
        several.wait(5_000_000)
        answer = asked(several, named)
        assert isinstance(answer, MillstreamError), answer
        assert "chunks are not cut" in answer.message, (answer, lines[-20:])
        assert several.leader(TOPIC, 0) is None
        done = asked(several, other)
        assert not isinstance(done, MillstreamError), done
        several.expected.append("")
        rest(several)
        judge(several)
    assert Counter(type(one).__name__ for one in several.members) == {"Member": 3}


@pytest.mark.parametrize("kind", ["tiered, three replicas", "shared, three replicas"])
def test_of_an_archived_topic_the_store_says_what_an_unreadable_file_of_epochs_does_not(kind: str) -> None:
    several = Several("unreadable", KINDS[kind])
    errors: list[str] = []
    with _listening(errors):
        fill(several, 12)
        rest(several)
        fill(several, 2)
        several.until(lambda: not several.lag(TOPIC, 0), "replicas do not catch up")
        named = several.members[0]
        cuts._lose_epochs(several, named, named.table.find(TOPIC, 0))
        for one in several.members[1:]:
            several.fail(one)
        answer = asked(several, named)
        assert not isinstance(answer, MillstreamError), answer
        rest(several)
        judge(several)


def test_a_store_that_is_away_is_said_before_anything_is_decided() -> None:
    several = Several("away", KINDS["shared, three replicas"])
    with _listening([]):
        fill(several, 6)
        several.until(lambda: not several.lag(TOPIC, 0), "replicas do not catch up")
        for one in several.members:
            several.fail(one)
        several.wait(5_000_000)
        several.set_store(Faults(error=1.0))
        answer = asked(several, several.members[0])
    assert isinstance(answer, Unavailable), answer
    assert not several.controller.cuts


def test_a_leader_that_is_elected_while_the_store_is_asked_keeps_its_log() -> None:
    several = Several("elected", KINDS["tiered, three replicas"])
    with _listening([]):
        fill(several, 6)
        several.until(lambda: not several.lag(TOPIC, 0), "replicas do not catch up")
        named, *others = several.members
        for one in others:
            several.stop_one(one)
        several.slow_us = 30_000_000
        answers: list[object] = []
        several.until(lambda: not named.table.find(TOPIC, 0).group.is_serving, "a leader without followers stays")
        several.wait(5_000_000)
        cuts._ask(named, answers)
        several.wait(1_000_000)
        assert not answers, "the store is slow"
        for one in others:
            one.start()
        several.until(lambda: bool(answers), "no answer")
        several.slow_us = 0
    assert isinstance(answers[0], MillstreamError) and "is led by" in answers[0].message, answers
    assert not several.controller.cuts
    judge(several)
