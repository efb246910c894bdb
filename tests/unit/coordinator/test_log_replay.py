"""A record that a coordinator's replay cannot take ends the state of that partition, whatever is raised."""

from collections import deque

import pytest

from millstream.coordinator.log_replay import LogReplay
from millstream.errors import Corruption
from millstream.wire.records import build_batch


class Log:
    log_start_offset = 0
    high_watermark = 1

    def read(self, offset, max_bytes, done):
        done([build_batch([(b"k", b"v", (), 1)])])


class Reactor:
    def __init__(self):
        self.ready = deque()

    def background(self, work, generator, share, done):
        self.ready.append((generator, done))

    def run(self):
        while self.ready:
            generator, done = self.ready.popleft()
            for _ in generator:
                pass
            done()


def nothing(*_):
    yield from ()


def raises(*_):
    raise ZeroDivisionError("planted")
    yield


def fails():
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize(
    ("each", "finish", "done"), [(raises, nothing, list), (nothing, raises, list), (nothing, nothing, fails)]
)
def test_what_no_replay_raises_ends_this_replay_only(each, finish, done):
    reactor, failures = Reactor(), []
    replay = LogReplay(Log(), reactor, each, finish, done, lambda offset, error: failures.append((offset, error)))
    replay.start()
    reactor.run()
    ((offset, error),) = failures
    assert offset in (0, 1)
    assert isinstance(error, Corruption) and "planted" in error.message


def test_a_replay_without_faults_is_done():
    reactor, failures, ends = Reactor(), [], []
    LogReplay(Log(), reactor, nothing, nothing, lambda: ends.append(1), failures.append).start()
    reactor.run()
    assert (ends, failures) == ([1], [])
