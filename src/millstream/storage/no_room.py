"""Retries file changes on a full disk until there is space, as a copying file system may need it for any change.

For changes that must neither be dropped nor overtaken by later ones. The caller waits; only a cancelled wait ends with
the disk's error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.storage.disk import FULL
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

_WAIT_S: Final = 1.0


def once_there_is_room(change: Callable[[], None], what: str, wait: Callable[[float], object]) -> None:
    """Execute ``change``, which may be repeated where it stopped. ``wait`` waits for the given seconds and returns true
    to cancel. The failure ``what`` is logged once.

    Raises:
        OSError: the change failed for another reason than space, or was cancelled.
    """
    reported = False
    while True:
        try:
            change()
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not reported:
                operator_log.warning("%s: %s; that is tried again", what, error.strerror)
                reported = True
            if wait(_WAIT_S):
                raise
        else:
            return
