"""A broker's storage, as the command line plays it: each seed in every way, or in those that are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sim.engine.command import Scenario
from sim.storage.campaign import WAYS, play

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from sim.engine.histories import Counts, Finding


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--way", choices=sorted(WAYS), action="append", help="only this way (may be given again)")
    parser.add_argument("--operations", type=int, default=80, help="operations of a history (default: 80)")


def _chosen(given: Any) -> Scenario:
    def play_ways(seed: int, counts: Counts) -> Finding | None:
        findings = [play(way, seed, given.operations, counts) for way in given.way or sorted(WAYS)]
        return next((one for one in findings if one is not None), None)

    return SCENARIO._replace(play=play_ways)


def _never(_seed: int, _counts: Counts) -> Finding | None:
    raise AssertionError("the options choose the ways")


SCENARIO: Final = Scenario(
    "A broker's storage, with a power failure before every operation of its disk.",
    _never,
    logs=False,
    options=_options,
    chosen=_chosen,
)
