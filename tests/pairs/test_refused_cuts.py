"""A replica whose files do not tell enough is refused by an unclean cut, in words, and another one can be named."""

from collections import Counter
from unittest.mock import patch

import pytest

from millstream.errors import MillstreamError
from millstream.telemetry.log import Log
from sim.pairs import cuts
from sim.pairs.judge import judge
from sim.pairs.kinds import KINDS, TOPIC
from sim.pairs.operations import fill
from sim.pairs.resting import rest
from sim.pairs.several import Several


def damaged(several: Several, named, kind: str) -> None:
    """The files of a replica tell less than they should; the others have failed."""
    partition = named.table.find(TOPIC, 0)
    if kind.startswith("events"):
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
    else:
        cuts._lose_epochs(several, named, partition)
        for one in [each for each in several.members if each is not named]:
            several.fail(one)


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


@pytest.mark.parametrize(
    ("kind", "why"), [("tiered, three replicas", "said there alone"), ("events, three replicas", "chunks are not cut")]
)
def test_a_replica_that_does_not_tell_enough_is_refused_and_another_one_is_taken(kind: str, why: str) -> None:
    lines: list[str] = []

    def write(self: Log, level: object, message: str, args: tuple[object, ...], detail: str = "") -> None:
        lines.append(message % args if args else message)

    with patch.object(Log, "_write", write):
        several = Several("refused", KINDS[kind])
        fill(several, 12)
        several.until(lambda: not several.lag(TOPIC, 0), "replicas do not catch up")
        named, other = several.members[:2]
        damaged(several, named, kind)
        several.wait(5_000_000)
        answer = asked(several, named)
        assert isinstance(answer, MillstreamError), answer
        assert why in answer.message or any(why in line for line in lines), (answer, lines[-20:])
        assert several.leader(TOPIC, 0) is None
        done = asked(several, other)
        assert not isinstance(done, MillstreamError), done
        several.expected.append("")
        rest(several)
        judge(several)
    assert Counter(type(one).__name__ for one in several.members) == {"Member": 3}
