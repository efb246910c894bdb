"""A message in a term far above that of a replica with a log: after an unclean cut (`core.controller.cutting`) the
leader may reach a replica whose broker has not learned of the cut.

Such a replica must not take the term. Its vote would say that it has taken the cut, so that its log would not be put
aside, although it may have committed entries that the new leader lacks; and with the members of before, it could be
elected together with others that were away. So a message that leaps has no effect until the broker has learned of the
cut and opens the replica empty.

A group that elects again and again while a replica is away may leap as well. After `PATIENCE_US` of such messages the
broker had the time to learn of a cut, and the term is taken. A replica with an empty log takes any term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from millstream.model.replication import Term, TimeUs

LEAP: Final = 1 << 15
"""Half of what a cut adds to the term (`core.controller.cutting.TERM_GAP`): elections that were not noticed are in the
other half.
"""

PATIENCE_US: Final = 600_000_000


class Leaps:
    """What one replica has received. Lifecycle: made with the replica."""

    __slots__ = ("_since_us",)

    def __init__(self) -> None:
        self._since_us: TimeUs | None = None
        """When the first message came that leapt; None before it."""

    def bars(self, now: TimeUs, own: Term, term: Term) -> bool:
        """Whether a message in ``term`` has no effect on a replica with entries whose term is ``own``."""
        if term - own < LEAP:
            return False
        if self._since_us is None:
            self._since_us = now
        return now - self._since_us < PATIENCE_US
