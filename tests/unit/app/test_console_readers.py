"""A page of the console that is not read holds no place for ever; streams have limits of their own."""

import threading

import pytest

from millstream.app.console_requests import READ_S, _Opened
from millstream.app.side_process import SideFailed


class Exchange:
    """Parts without an end; each takes its reader ten seconds."""

    def __init__(self, room):
        self.room, self.closed = room, False

    def __iter__(self):
        while True:
            self.room.now += 10
            yield b"part"

    def close(self):
        self.closed = True


class Room:
    def __init__(self):
        self.now, self.slots = 0.0, threading.BoundedSemaphore(1)
        self.slots.acquire()
        self.opened = _Opened(self.slots, lambda: self.now)
        self.opened.exchange = Exchange(self)


@pytest.fixture
def room():
    return Room()


def test_a_page_that_is_read_too_slowly_is_cut_and_its_place_is_free(room):
    room.opened.is_page = True
    with pytest.raises(SideFailed, match="was not read within 60 s"):
        for _ in room.opened:
            assert room.now <= READ_S + 10
    room.opened.close()
    room.opened.close()
    assert room.opened.exchange.closed
    assert room.slots.acquire(blocking=False)


def test_a_stream_is_read_for_as_long_as_it_lasts(room):
    for number, _ in enumerate(room.opened):
        if number == 50:
            break
    assert room.now > READ_S
