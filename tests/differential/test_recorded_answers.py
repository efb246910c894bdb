"""Millstream against what Apache Kafka 4.3.1 answered when it was last asked (``recorded/``), without a Kafka.

The same cases and the same known differences as in ``make differential``, without those that wait for timers. The fast
test plays each request at its lowest and highest version, and a drawn fourth of the frames that are made by hand; a
slower one plays all these frames, the slowest everything at every version, and notices a known difference that is gone.
"""

import random

import pytest

from differential import recording
from differential.brokers import millstream
from differential.compare import differences, judge, known_differences
from differential.play import play_all
from differential.table import EVERY_VERSION, Case, Input, all_cases, all_inputs, few

pytestmark = pytest.mark.process

SHOWN = 40
PARTS = 3
"""Tests that the fast choice of inputs is spread over, so that several workers share it."""
FRAMES = 4
"""One of so many frames made by hand is played in the fast test."""


def findings(inputs: list[Input], absent: list[Case]) -> list[str]:
    """What differs from the recording and is not known; ``absent`` are cases that are not played in full."""
    recorded = recording.load()
    missing = [at.id for at in inputs if at.id not in recorded]
    assert not missing, f"make differential ARGS=--save has not recorded {len(missing)} inputs: {missing[:5]}"
    with millstream() as broker:
        played = play_all(inputs, [broker])
    found = [one for at, (ours,) in played.items() for one in differences(at, recorded[at.id], ours.seen)]
    verdict = judge(found, known_differences(), {at.case for at in inputs}, absent)
    told = [f"new: {one}" for one in verdict.new] + [f"no longer differs: {one}" for one in verdict.stale]
    return told + [f"{at.id}: {fault}" for at, (ours,) in played.items() for fault in ours.checks]


def parts(part: int) -> tuple[list[Input], list[Input]]:
    """A part of the fast choice: frames made by hand, and everything else, with a good request at every version."""
    mine = few(all_inputs(slow=False))[part::PARTS]
    frames = [at for at in mine if at.case.made and at.case.name != EVERY_VERSION]
    return frames, [at for at in mine if at not in frames]


def told(found: list[str]) -> str:
    return f"{len(found)} findings (make differential says more):\n" + "\n".join(found[:SHOWN])


@pytest.mark.parametrize("part", range(PARTS))
def test_millstream_answers_as_apache_kafka_did(part, fresh_seed):
    frames, others = parts(part)
    drawn = random.Random(f"{part}/{fresh_seed}").sample(frames, len(frames) // FRAMES)
    found = findings([*others, *drawn], absent=all_cases())
    assert not found, told(found)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("part", range(PARTS))
def test_millstream_answers_each_frame_as_apache_kafka_did(part):
    found = findings(parts(part)[0], absent=all_cases())
    assert not found, told(found)


@pytest.mark.slow
def test_millstream_answers_as_apache_kafka_did_at_every_version():
    found = findings(all_inputs(slow=False), absent=[one for one in all_cases() if one.slow])
    assert not found, told(found)
