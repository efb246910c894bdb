"""A share partition over a log and a coordinator that do what the test says."""

from types import SimpleNamespace

from millstream.coordinator.share_states import READ
from millstream.core.share.partition import Limits, Request
from millstream.core.share.stored import Image
from millstream.model.error_code import ErrorCode
from millstream.partition.read.batches import FetchResult
from millstream.share import served
from millstream.share.meters import ShareMeters
from millstream.share.served import ServedPartition, Span, Taken
from millstream.telemetry.metrics import StatsSlab


class Reactor:
    def __init__(self):
        self.now = 1_000_000
        self.timers = []

    def now_us(self):
        return self.now

    def wall_ms(self):
        return 5

    def end_of_turn(self, callback):
        self.call_later(0, callback)

    def call_later(self, delay_us, callback):
        return self.call_at(self.now + delay_us, callback)

    def call_at(self, at_us, callback):
        timer = SimpleNamespace(deadline_us=at_us, run=callback)
        timer.cancel = lambda: self.timers.remove(timer) if timer in self.timers else None
        self.timers.append(timer)
        return timer

    def run_until(self, now):
        while due := [one for one in self.timers if one.deadline_us <= now]:
            first = min(due, key=lambda one: one.deadline_us)
            self.timers.remove(first)
            self.now = max(self.now, first.deadline_us)
            first.run()
        self.now = now


class Data:
    """Bytes of a log from a batch on, which have to be released."""

    def __init__(self, lent, spans=()):
        self.lent = lent
        self.spans = spans
        lent.append(self)

    def share(self, position, length):
        _ = position, length
        return Data(self.lent)

    def release(self):
        self.lent.remove(self)


class World:
    """The shard and the coordinator around one share partition, whose log has the offsets 0 to 9 in batches of
    ``batch`` records.
    """

    def __init__(self, monkeypatch, batch=10):
        self.batch = batch
        self.limits = Limits()
        self.aborted = []
        self.reactor = Reactor()
        self.meters = ShareMeters(StatsSlab(0))
        self.asks, self.woken, self.forgotten, self.lent = [], [], [], []
        self.states = SimpleNamespace(ask_all=lambda asks, done: self.asks.append((asks[0], done)))
        self.cold = []
        self.is_cold = False
        group = SimpleNamespace(is_serving=True)
        log = SimpleNamespace(start_offset=0)
        readers = SimpleNamespace(readers=set())
        self.partition = SimpleNamespace(
            leader_epoch=3, log=log, log_start_offset=0, high_watermark=10, group=group, waiters=readers
        )
        monkeypatch.setattr(served, "read_here", self._read_here)
        monkeypatch.setattr(served, "read_older", lambda *args: self.cold.append(args[2]))
        monkeypatch.setattr(served, "_spans", lambda data: data.spans)
        self.one = ServedPartition(("g", b"t" * 16, 0), self.partition, self)

    def result(self, offset=0):
        """The batch with this offset."""
        end = self.partition.high_watermark
        first = offset - offset % self.batch
        last = min(first + self.batch, end) - 1
        data = Data(self.lent, [Span(first, last, 0, 100, 7, bool(self.aborted), False)])
        return FetchResult(0, end, end, self.partition.log.start_offset, data, None, self.aborted)

    def _read_here(self, partition, request, watch):
        end, start = partition.high_watermark, partition.log.start_offset
        if not start <= request.offset <= self.log_end:
            return FetchResult(int(ErrorCode.OFFSET_OUT_OF_RANGE))
        if request.offset >= end:
            watch.arm(partition)
            return FetchResult(0, end, end, start)
        return None if self.is_cold else self.result(request.offset)

    @property
    def log_end(self):
        return self.partition.high_watermark

    def change_log(self, end=None, start=None):
        """The log gets records, or loses its first ones: who watches it is woken."""
        self.partition.high_watermark = self.partition.high_watermark if end is None else end
        self.partition.log.start_offset = self.partition.log.start_offset if start is None else start
        readers, self.partition.waiters.readers = self.partition.waiters.readers, set()
        for reader in readers:
            reader.wake()

    def wake(self, waiter):
        self.woken.append(waiter)

    def forget(self, one):
        self.forgotten.append(one)

    def limits_of(self, group_id):
        _ = group_id
        return self.limits

    def reads_committed(self, group_id):
        _ = group_id
        return False

    def reset_of(self, group_id):
        _ = group_id
        return -2

    def fetch(self, token, member="m", most=500, **more):
        taken = []
        self.one.fetch(self.request(member, token, most), 1000, (0, token), taken.append, **more)
        return taken

    def request(self, member, token, most=500):
        return Request(member, token, most, strict=most < 500)

    def answer(self, error=ErrorCode.NONE, image=None):
        """Answer the oldest question; returns it."""
        ask, done = self.asks.pop(0)
        done([(int(error), image)])
        return ask

    def load(self, token=1):
        assert self.fetch(token) == [Taken(ErrorCode.NONE)]
        ask = self.answer(image=image())
        assert (ask.kind, ask.leader_epoch) == (READ, 3)
        return self.fetch(token)


def image(created_ms=7, state_epoch=1, start=0):
    return Image(0, state_epoch, 3, start, 0, [], created_ms, 7)
