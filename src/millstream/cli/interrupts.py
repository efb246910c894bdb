"""Ctrl-C within a client of librdkafka: its code loses the KeyboardInterrupt, and Python raises SystemError instead."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

_seen: Final = threading.Event()


def take_interrupts() -> None:
    """Remember Ctrl-C from now on, where it raises KeyboardInterrupt."""
    _seen.clear()
    is_first = threading.current_thread() is threading.main_thread()
    if is_first and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)


def note(_: int, __: FrameType | None) -> NoReturn:
    """The handler of the signal."""
    _seen.set()
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C in the block is KeyboardInterrupt, also where a client lost it."""
    try:
        yield
    except SystemError:
        if _seen.is_set():
            raise KeyboardInterrupt from None
        raise
