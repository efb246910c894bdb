"""Calls between shards: answers, deadlines, cancels, credits and loans of memory."""

import mmap
import random
import struct
import time

import pytest
from shard_pair import TIMEOUT_US, Side, pair

from millstream.errors import (
    Corruption,
    MillstreamError,
    OutcomeUnknown,
    Rejected,
    Retriable,
    ShuttingDown,
    Unavailable,
)
from millstream.iobuf import Arena, ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.shard import mailbox as mailbox_module

ECHO, SILENT, SEEN, FAIL, LOOK, GIVE, SLOW, NOTE = range(1, 9)


def echo(side):
    side.mailbox.serve(ECHO, lambda _, payload, reply: reply.send(payload))


def test_a_call_is_answered_by_the_other_process():
    got = []

    def here(side):
        def answered(answer):
            got.append(answer)
            side.finish()

        side.call(ECHO, b"hello", answered)

    pair(echo, here)
    assert got == [b"hello"]


def test_messages_far_longer_than_the_ring_arrive_whole_and_in_order():
    sizes = [10, 300_000, 0, 16 * 1024 - 32, 16 * 1024, 1_000_000, 5]
    got = []

    def here(side):
        def answered(answer):
            got.append(answer)
            if len(got) == len(sizes):
                side.finish()

        for index, size in enumerate(sizes):
            side.call(ECHO, bytes([index]) * size, answered)

    pair(echo, here, ring_capacity_bytes=32 * 1024)
    assert got == [bytes([index]) * size for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (Rejected("no", ErrorCode.INVALID_TOPIC_EXCEPTION), Rejected),
        (Retriable("later"), Retriable),
        (OutcomeUnknown("perhaps"), OutcomeUnknown),
        (Corruption("bad"), Corruption),
        (ShuttingDown("bye"), ShuttingDown),
        (ArenaFull("full"), Unavailable),
        (MillstreamError("other"), MillstreamError),
    ],
)
@pytest.mark.parametrize("way", ["raised", "replied"])
def test_an_error_arrives_as_its_class_with_code_and_message(raised, arrives, way):
    got = []

    def there(side):
        def handler(_, payload, reply):
            if way == "raised":
                raise raised
            reply.fail(raised)

        side.mailbox.serve(FAIL, handler)

    def here(side):
        def answered(answer):
            got.append(answer)
            side.finish()

        side.call(FAIL, b"", answered)

    pair(there, here)
    (error,) = got
    assert type(error) is arrives
    assert (error.code, error.message) == (raised.code, raised.message)


def test_a_method_that_nobody_serves_is_rejected():
    got = []

    def here(side):
        def answered(answer):
            got.append(answer)
            side.finish()

        side.call(200, b"", answered)

    pair(lambda side: None, here)
    assert isinstance(got[0], Rejected)


def never_answers(side):
    """SILENT keeps its reply; SEEN tells how many came and how many were cancelled."""
    kept, cancelled = [], []

    def silent(_, payload, reply):
        kept.append(reply)
        reply.on_cancel = lambda: cancelled.append(payload)

    def late(_, payload, reply):
        for old in kept:
            old.send(b"late")
        reply.send(f"{len(kept)} {len(cancelled)}".encode())

    side.mailbox.serve(SILENT, silent)
    side.mailbox.serve(SEEN, late)


def test_a_call_that_is_not_answered_in_time_has_an_unknown_outcome_and_is_dropped_there():
    got = []

    def here(side):
        def ask(timeout_us):
            begun_us = side.reactor.now_us()

            def timed_out(answer):
                got[:] = [answer, side.reactor.now_us() - begun_us, timeout_us]
                side.call(SEEN, b"", seen)

            def seen(answer):
                if answer == b"0 0":  # a busy machine did not start it within that
                    ask(2 * timeout_us)
                    return
                got.append(answer)
                side.finish()

            side.call(SILENT, b"x", timed_out, timeout_us=timeout_us)

        ask(50_000)

    side = pair(never_answers, here)
    error, took_us, timeout_us, counts = got
    assert isinstance(error, OutcomeUnknown)
    assert took_us >= timeout_us
    assert counts == b"1 1", "the other side was told, and its late answer went nowhere"
    assert side.stats.counter("mailbox_timeouts").value >= 1


def test_deadlines_fire_in_order_whatever_order_the_calls_had():
    ended, due = [], {}

    def here(side):
        def end(name):
            def ended_now(answer):
                assert isinstance(answer, OutcomeUnknown)
                ended.append(name)
                if len(ended) == 3:
                    side.finish()

            return ended_now

        for name in (60, 20, 40):
            side.call(SILENT, b"", end(name), timeout_us=name * 1000)
            (*_, (_, deadline_us, _)) = side.mailbox._pending.values()
            due[name] = deadline_us

    pair(never_answers, here)
    assert ended == sorted(due, key=due.get)


def test_a_cancelled_call_is_never_answered_and_the_other_side_hears_of_it():
    got = []

    def here(side):
        call_id = side.call(SILENT, b"x", lambda answer: got.append(("never", answer)))

        def cancel():
            side.mailbox.cancel(call_id)
            side.mailbox.cancel(call_id)
            side.call(SEEN, b"", seen)

        def seen(answer):
            got.append(answer)
            side.finish()

        side.call_later(5000, cancel)

    pair(never_answers, here)
    assert got == [b"1 1"]


def test_a_call_that_is_looked_at_after_its_deadline_is_not_started():
    got = []
    shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    begun, overdue = 0, 1  # cells of it
    end = time.perf_counter() + 120

    def there(side):
        started = []

        def slow(_, payload, reply):
            if payload != b"count":
                started.append(payload)
            if payload == b"busy":
                shared[begun] = 1
                while not shared[overdue] and time.perf_counter() < end:
                    pass
            reply.send(str(len(started)).encode())

        side.mailbox.serve(SLOW, slow)

    def here(side):
        def done(answer):
            got.append(answer)
            side.finish()

        def expired(_):
            shared[overdue] = 1
            side.call(SLOW, b"count", done)

        def behind():
            if not shared[begun]:
                side.call_later(1000, behind)
                return
            loan = side.lend(b"data")
            side.call(SLOW, b"expires", expired, timeout_us=10_000, loans=(loan[2],))

        side.call(SLOW, b"busy", lambda _: None)
        behind()

    pair(there, here)
    assert got == [b"1"], "only the busy one was started, and the other's loan came home"


def test_above_the_credits_a_call_is_refused_at_once_and_its_loans_stay_here(monkeypatch):
    monkeypatch.setattr(mailbox_module, "CREDITS", 4)
    refused, answered = [], []

    def here(side):
        def take(answer):
            (refused if isinstance(answer, Retriable) else answered).append(answer)
            if len(refused) + len(answered) == 7:
                side.call(ECHO, b"again", lambda answer: (answered.append(answer), side.finish()))

        for number in range(7):
            loan = side.lend(b"x")
            call_id = side.call(LOOK, struct.pack("<QIQ", *loan), take, loans=(loan[2],))
            assert (call_id == 0) == (number >= 4)

    def there(side):
        echo(side)
        looks(side)

    side = pair(there, here)
    assert len(refused) == 3
    assert answered == [b"x"] * 4 + [b"again"], "credits come back with the answers"
    assert side.stats.counter("mailbox_refused").value == 3


def looks(side):
    """LOOK answers with the bytes behind a descriptor and gives them back."""

    def look(_, payload, reply):
        borrowed = side.borrow(struct.unpack("<QIQ", payload))
        data = bytes(borrowed.view)
        borrowed.release()
        reply.send(data)

    side.mailbox.serve(LOOK, look)


def test_lent_bytes_are_read_in_place_and_all_come_home():
    got = []
    chooser = random.Random(7)
    sent = [chooser.randbytes(chooser.choice((1, 600, 5000, 100_000))) for _ in range(60)]

    def here(side):
        def take(index):
            def answered(answer):
                got.append((index, answer))
                if len(got) == len(sent):
                    side.finish()

            return answered

        for index, data in enumerate(sent):
            loan = side.lend(data)
            side.call(LOOK, struct.pack("<QIQ", *loan), take(index), loans=(loan[2],))

    pair(looks, here, ring_capacity_bytes=1 << 20)
    assert got == list(enumerate(sent))


def gives(side, delay_us):
    """GIVE lends a fragment in its answer, after a delay."""

    def give(_, payload, reply):
        def answer():
            loan = side.lend(payload)
            reply.send(struct.pack("<QIQ", *loan), (loan[2],))

        side.call_later(delay_us, answer)

    side.mailbox.serve(GIVE, give)


def test_an_answer_may_lend():
    got = []

    def here(side):
        def answered(answer):
            borrowed = side.borrow(struct.unpack("<QIQ", answer))
            second = borrowed.share()
            borrowed.release()
            got.append(bytes(second.view))
            second.release()
            side.finish()

        side.call(GIVE, b"given", answered)

    pair(lambda side: gives(side, 0), here)
    assert got == [b"given"]


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_what_a_late_answer_lends_goes_home_by_itself(how):
    ended = []
    shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
    asked, over, lent = range(3)  # cells of it

    def there(side):
        def give(_, payload, reply):
            shared[asked] = 1
            when(side, over, lambda: answer(payload, reply))

        def answer(payload, reply):
            loan = side.lend(payload)
            reply.send(struct.pack("<QIQ", *loan), (loan[2],))
            shared[lent] = 1

        side.mailbox.serve(GIVE, give)

    def here(side):
        def asks(timeout_us):
            def ends(error):
                if not shared[asked]:  # this machine took longer to receive the call: it was not started
                    asks(2 * timeout_us)
                    return
                ended.append(error)
                is_over()

            return side.call(GIVE, b"late", ends, timeout_us)

        def is_over():
            shared[over] = 1
            when(side, lent, side.finish)

        def cancels():
            side.mailbox.cancel(call_id)
            is_over()

        call_id = asks(20_000 if how == "timeout" else TIMEOUT_US)
        if how == "cancel":
            when(side, asked, cancels)

    def when(side, cell, callback):
        """Call back once the cell is set."""
        if shared[cell]:
            callback()
        else:
            side.call_later(1000, lambda: when(side, cell, callback))

    pair(there, here)
    assert [type(end) for end in ended] == ([OutcomeUnknown] if how == "timeout" else [])


def test_what_an_answer_lends_that_was_under_way_when_its_call_was_cancelled_goes_home():
    def here(side):
        call_id = side.call(GIVE, b"under way", lambda _: pytest.fail("answered after the cancel"))

        def stand_still_then_cancel():
            end = time.perf_counter() + 0.05
            while time.perf_counter() < end:
                pass  # the answer is in the ring by now, and this shard has not looked
            side.mailbox.cancel(call_id)
            side.finish()

        side.call_later(1000, stand_still_then_cancel)

    pair(lambda side: gives(side, 10_000), here)


def test_both_ways_at_once_with_rings_far_too_small_nothing_blocks():
    """Each side opens thousands of calls whose answers need the rings that the calls have filled."""
    count = 3000
    payload = bytes(200)

    def flood(side, finished):
        open_calls = [count]

        def answered(answer):
            assert answer == payload
            open_calls[0] -= 1
            if not open_calls[0]:
                finished()

        def begin():
            for _ in range(count):
                side.call(ECHO, payload, answered)

        side.call_later(2000, begin)

    def there(side):
        echo(side)
        done = []
        flood(side, lambda: done.append(True))
        side.mailbox.serve(NOTE, lambda _, __, reply: reply.send(b"done" if done else b""))

    def here(side):
        echo(side)

        def ask(answer=b""):
            if answer == b"done":
                side.finish()
            else:
                side.call_later(1000, lambda: side.call(NOTE, b"", ask))

        flood(side, ask)

    side = pair(there, here, ring_capacity_bytes=1024 * 32)
    assert side.stats.counter("ring_full").value > 0, "the rings were never full: this tested nothing"


def test_tells_arrive_in_order_with_calls():
    got = []

    def there(side):
        notes = []

        def note(sender, payload, reply):
            assert sender == 0
            assert not reply.wanted
            reply.send(b"goes nowhere")
            notes.append(payload)

        side.mailbox.serve(NOTE, note)
        side.mailbox.serve(SEEN, lambda _, __, reply: reply.send(b",".join(notes)))

    def here(side):
        for number in range(5):
            side.mailbox.tell(1, NOTE, str(number).encode())

        def answered(answer):
            got.append(answer)
            side.finish()

        side.call(SEEN, b"", answered)

    pair(there, here)
    assert got == [b"0,1,2,3,4"]


def test_a_shard_may_call_and_lend_to_itself(mesh_of):
    arenas = [Arena.create(0, 1 << 20, poison=True)]
    side = Side(0, mesh_of(1), arenas)
    side.other = 0
    looks(side)
    got = []

    def answered(answer):
        got.append(answer)
        side.call_later(5000, side.reactor.stop)

    loan = side.lend(b"mine")
    side.call(LOOK, struct.pack("<QIQ", *loan), answered, loans=(loan[2],))
    assert side.run() == 0
    assert got == [b"mine"]


def test_an_exception_in_a_handler_stops_the_shard(mesh_of, capfd):
    side = Side(0, mesh_of(1), [Arena.create(0, 1 << 20)])

    def broken(_, payload, reply):
        raise ZeroDivisionError

    side.mailbox.serve(FAIL, broken)
    side.mailbox.call(0, FAIL, b"", lambda _: None, 1_000_000)
    assert side.reactor.run() == 70
    assert "ZeroDivisionError" in capfd.readouterr().err
