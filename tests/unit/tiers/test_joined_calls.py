"""Reads of archived segments that wait for the store: the same one is sent once, each reader gets its own chain, and
what comes after its readers have left is for the next one.
"""

from types import SimpleNamespace

import msgspec
import pytest
from numbered_segments import OWNER, numbered

from millstream.errors import MillstreamError
from millstream.iobuf import Arena
from millstream.model.error_code import ErrorCode
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.link import ArchiveLink
from millstream.tiers.messages import Failed, Find, Found, Read, ReadDone

SEGMENT = numbered(1)[0]
SPANS = [(7, 1, 2)]


class Link(ArchiveLink):
    """A link whose process answers when the test says so."""

    def __init__(self):
        self.arena = Arena.create(0, 16 << 20)
        self.soon, self.timers = [], []
        reactor = SimpleNamespace(now_us=lambda: 0, call_soon=self.call_soon, call_later=self.call_later)
        super().__init__(reactor, self.arena, StatsSlab(0), None, None)
        self.sent = []
        self._link.send = self.sent.append

    def call_soon(self, callback, *args):
        self.soon.append(lambda: callback(*args))

    def call_later(self, delay_us, callback):
        timer = SimpleNamespace(callback=callback)
        timer.cancel = lambda: timer in self.timers and self.timers.remove(timer)
        self.timers.append(timer)
        return timer

    def turn(self):
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def read_at(self, offset, got, *, max_bytes=1000, segment=SEGMENT):
        spans = []
        done = lambda result: got.append((result, spans))  # noqa: E731
        return self.read(OWNER, segment, offset, SEGMENT.end_offset, max_bytes, done, minimum_one=True, aborted=spans)

    def find_at(self, timestamp, got):
        self.find(OWNER, SEGMENT, timestamp, SEGMENT.base_offset, SEGMENT.end_offset, got.append)

    def answer(self, reply, **fields):
        number = self.sent.pop(0).id
        if reply is Failed:
            self._link.fail(number, Failed(number, ErrorCode.KAFKA_STORAGE_ERROR, "away"))
        else:
            self._link.reply(reply(number, **fields))


@pytest.fixture
def link():
    return Link()


def test_the_same_read_is_sent_once_and_both_readers_get_it(link):
    free = link.arena.in_use_bytes
    got = []
    link.read_at(SEGMENT.base_offset, got)
    link.read_at(SEGMENT.base_offset, got, max_bytes=10)
    link.read_at(SEGMENT.base_offset + 1, [])
    assert [type(one) for one in link.sent] == [Read, Read]
    link.answer(ReadDone, size_bytes=100, need_bytes=0, aborted=SPANS)
    assert [(len(data), spans) for data, spans in got] == [(100, SPANS), (100, SPANS)]
    link.answer(Failed)
    for data, _ in got:
        assert link.arena.in_use_bytes > free
        data.release()
    assert link.arena.in_use_bytes == free
    link.read_at(SEGMENT.base_offset, got)
    assert len(link.sent) == 1, "the next one is another read"


def test_a_reader_that_left_gets_nothing_and_its_read_is_not_sent_again(link):
    free = link.arena.in_use_bytes
    left, got = [], []
    leave = link.read_at(SEGMENT.base_offset, left)
    leave()
    link.read_at(SEGMENT.base_offset, got)()
    assert len(link.sent) == 1
    link.answer(ReadDone, size_bytes=100, need_bytes=0)
    leave()
    assert left == got == []
    link.stop()
    assert link.arena.in_use_bytes == free


def test_what_comes_after_its_readers_have_left_is_for_the_next_one(link):
    free = link.arena.in_use_bytes
    link.read_at(SEGMENT.base_offset, [])()
    link.answer(ReadDone, size_bytes=100, need_bytes=0, aborted=SPANS)
    left, got = [], []
    leave = link.read_at(SEGMENT.base_offset, left)
    assert left == [] and link.sent == [], "it is there, and given after the call"
    leave()
    link.turn()
    link.read_at(SEGMENT.base_offset, got)
    link.turn()
    assert left == [] and [(len(data), spans) for data, spans in got] == [(100, SPANS)]
    got[0][0].release()
    assert link.arena.in_use_bytes == free and link.timers == [] and link.sent == []


def test_what_nobody_asks_for_again_is_released(link):
    free = link.arena.in_use_bytes
    link.read_at(SEGMENT.base_offset, [])()
    link.answer(ReadDone, size_bytes=100, need_bytes=0)
    assert link.arena.in_use_bytes > free
    link.timers.pop().callback()
    assert link.arena.in_use_bytes == free
    link.read_at(SEGMENT.base_offset, [])
    assert [type(one) for one in link.sent] == [Read]


def test_reads_of_nobody_take_a_sixteenth_of_the_memory(link):
    size = link.arena.capacity_bytes // 16 // 3
    large = msgspec.structs.replace(SEGMENT, size_bytes=8 * size)
    for offset in range(SEGMENT.base_offset, SEGMENT.base_offset + 5):
        link.read_at(offset, [], max_bytes=size, segment=large)()
        link.answer(ReadDone, size_bytes=size, need_bytes=0)
    assert len(link.timers) == 3
    for offset in range(SEGMENT.base_offset, SEGMENT.base_offset + 5):
        link.read_at(offset, [], max_bytes=size, segment=large)
    assert [one.offset for one in link.sent] == [SEGMENT.base_offset, SEGMENT.base_offset + 1], "the oldest have gone"


def test_all_that_wait_for_a_read_learn_that_it_failed(link):
    got = []
    link.read_at(SEGMENT.base_offset, got)
    link.read_at(SEGMENT.base_offset, got)
    link.answer(Failed)
    assert [isinstance(result, MillstreamError) for result, _ in got] == [True, True]


def test_the_same_look_up_is_sent_once(link):
    got = []
    link.find_at(5, got)
    link.find_at(5, got)
    link.find_at(6, [])
    assert [type(one) for one in link.sent] == [Find, Find]
    link.answer(Found, offset=3, timestamp=5, leader_epoch=1, searched_to=9)
    assert [one.offset for one in got] == [3, 3]
