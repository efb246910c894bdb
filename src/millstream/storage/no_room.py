"""Changes of files that a full disk has no room for, as may be where it copies what it changes: tried until it has.

For changes that must not be left undone nor put off behind others. Whoever asks for one waits as long; only a wait that
is broken off ends it with the disk's error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.storage.disk import FULL
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_S: Final = 1.0


def once_there_is_room(change: Callable[[], None], what: str, wait: Callable[[float], object]) -> None:
    """Carry out `change`, which may be done again where it broke off. `wait` waits for so many seconds, and returns
    something true to have it given up. `what` could not be done is said once.

    Raises:
        OSError: the disk has another reason, or it was given up.
    """
    told = False
    while True:
        try:
            change()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not told:
                operator_log.warning("%s: %s; that is tried again", what, error.strerror)
                told = True
            if wait(_WAIT_S):
                raise
        else:
            return
