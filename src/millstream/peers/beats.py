"""Heartbeats of one connection, compressed: a turn with the same beats as the last one is sent in 2 bytes.

::

    groups that are due ──► BeatsOut.item ──► Beats (all that differ from the last) or BeatsAgain (2 bytes) or nothing
                                                       │ wire
    every group's beat   ◄── BeatsIn.expand ◄──────────┘

Both ends keep the beats that were sent last. A turn whose beats are those of the last one, with all rounds higher by
the same step, is sent as ``BeatsAgain``, for any number of groups. Any other turn is sent in full and is kept
instead. Groups with fresh traffic are left out by the caller, which changes the set and costs one full item.

The two ends agree because a connection loses and reorders nothing; both start with nothing kept on each connection. A
repetition of nothing is ``Corruption``. Memory: one ``Beat`` a group.
"""

from itertools import repeat
from typing import Final

from millstream.errors import Corruption
from millstream.peers.items import Beat, Beats, BeatsAgain

STEP_MAX: Final = 255


class BeatsOut:
    """The sending end, for heartbeats or for their replies.

    Lifecycle: one a connection and direction. Invariant: ``_last`` is what the receiver keeps once it has read all.
    """

    __slots__ = ("_last", "_reply")

    def __init__(self, *, reply: bool) -> None:
        self._reply = reply
        self._last: tuple[Beat, ...] = ()

    def item(self, beats: tuple[Beat, ...]) -> Beats | BeatsAgain | None:
        """The item for ``beats``, which name each group at most once; None for no beats."""
        if not beats:
            return None
        last = self._last
        self._last = beats
        if len(beats) == len(last):
            step = beats[0].round - last[0].round
            if 0 <= step <= STEP_MAX and all(map(_follows, beats, last, repeat(step))):
                return BeatsAgain(self._reply, step)
        return Beats(self._reply, beats)


class BeatsIn:
    """The receiving end, for heartbeats or for their replies.

    Lifecycle: one a connection and direction.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Beat, ...] = ()

    def expand(self, item: Beats | BeatsAgain) -> tuple[Beat, ...]:
        """The beats that ``item`` stands for.

        Raises:
            Corruption: it repeats what was never said.
        """
        if isinstance(item, Beats):
            self._last = item.beats
        elif not self._last:
            raise Corruption("heartbeats are repeated, but there were none before")
        else:
            step = item.step
            self._last = tuple(
                Beat(beat.group, beat.term, beat.first, beat.second, beat.round + step) for beat in self._last
            )
        return self._last


def _follows(beat: Beat, last: Beat, step: int) -> bool:
    return (
        beat.round == last.round + step
        and beat.group == last.group
        and beat.term == last.term
        and beat.first == last.first
        and beat.second == last.second
    )
