"""Spark's Python workers that die, or come up too late, and what is done about it.

Spark gives a Python worker ten seconds to start and to connect. On a busy machine that is not enough, and Spark then
fails the query, or the call that only plans one, although nothing is wrong with either. Such a call may be made again
as it was: its worker had not started. It is repeated after a pause, because a worker that was given up still loads its
modules, and on a busy machine several of them would keep the next one from coming up in time.
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

from millstream.errors import Unavailable

_LOG: Final = logging.getLogger("millstream.spark")
_LOST: Final = re.compile(
    r"Timed out while waiting for the Python worker|Python worker failed to connect back|"
    r"Python worker exited unexpectedly|EOFException"
)
_Result = TypeVar("_Result")

RESTARTS: Final = 5
"""In a row and without success in between."""


def lost_worker(error: BaseException) -> bool:
    """Whether Spark says that a worker died or did not connect in time."""
    return _LOST.search(str(error)) is not None


def restart_pause_s(restart: int) -> float:
    """The pause before a restart, of which the first is number 1: doubled each time."""
    return 0.5 * 2**restart


def patiently(call: Callable[[], _Result], what: str) -> _Result:
    """Make a call of Spark's that changes nothing, again if it lost a worker; other errors pass.

    Args:
        call: makes it.
        what: names it in messages.

    Raises:
        Unavailable: none of the attempts had a worker in time.
    """
    for restart in range(1, RESTARTS + 2):
        try:
            return call()
        except Exception as error:
            if not lost_worker(error):
                raise
            if restart > RESTARTS:
                raise Unavailable(
                    f"{what}: Spark's Python workers do not start within the ten seconds that Spark allows; the "
                    "machine is too busy, or they cannot import this package"
                ) from error
            _LOG.warning("%s lost its Python worker; attempt %d of %d", what, restart + 1, RESTARTS + 1)
            time.sleep(restart_pause_s(restart))
    raise AssertionError("the last attempt returns or raises")
