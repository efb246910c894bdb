"""A shard that goes to sleep misses no message, whenever it comes."""

import mmap
import os
import random

from shard_pair import Side, pair

from millstream.iobuf import Arena
from millstream.shard.messages import _HEADER as HEADER
from millstream.shard.messages import TELL
from millstream.shard.process import spawn

ECHO, NOTE = 1, 2


def echo(side):
    side.mailbox.serve(ECHO, lambda _, payload, reply: reply.send(payload))


def test_a_message_that_comes_while_a_shard_goes_to_sleep_is_found(mesh_of):
    """The producer looked at the flag just before it was set, so it rang no bell: step C3 must find the record."""
    mesh = mesh_of(2)
    producer = mesh.outbound(1, 0)
    said = []

    class LateFlag:
        def __init__(self):
            self.asleep = True

        def sleeps(self):
            return self.asleep

        def set(self, asleep):
            if asleep and not said:
                said.append(True)
                assert producer.push(HEADER.pack(TELL, NOTE, 0, 4, 0, 0) + b"note")
            self.asleep = asleep

    mesh.flags[0] = LateFlag()
    side = Side(0, mesh, [Arena.create(0, 1 << 20)] * 2)
    heard = []

    def note(sender, payload, reply):
        heard.append(payload)
        side.reactor.stop(0)

    side.mailbox.serve(NOTE, note)
    side.call_later(60_000_000, lambda: side.reactor.stop(1, "the message lay there"))
    assert side.run() == 0
    assert heard == [b"note"]


RACES = int(os.environ.get("MILLSTREAM_RACES", "4000"))
"""Messages of each of the two races below; millions of them run for some minutes."""


def test_no_lone_message_is_lost_on_a_shard_that_goes_to_sleep(mesh_of):
    """One message at a time, at every moment of the other side's way to sleep, and nothing else that could wake it."""
    mesh = mesh_of(2)
    heard = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def consumer():
        side = Side(1, mesh, [Arena.create(0, 1 << 20)] * 2)

        def note(sender, payload, reply):
            heard[0] += 1

        side.mailbox.serve(NOTE, note)
        return side.reactor.run()

    child = spawn("shard 1", consumer)
    side = Side(0, mesh, [Arena.create(0, 1 << 20)] * 2)
    side.reactor.end_of_turn = lambda callback: None  # this process sends by hand and never runs its reactor
    chooser = random.Random(5)
    sent = 0
    try:
        while sent < RACES:
            side.mailbox.tell(1, NOTE, b"")
            side.mailbox._transfer._flush()
            sent += 1
            waited = 0
            while heard[0] != sent:
                waited += 1
                if waited % 10_000 == 0:
                    os.sched_yield()
                    assert waited < 30_000_000, f"message {sent} lies in the ring and nobody looks"
            for _ in range(chooser.randrange(200)):
                pass
    finally:
        child.kill()
        child.wait()
        side.reactor.close()
    wakes = side.stats.counter("ring_wakes").value
    assert 0 < wakes <= sent
    print(f"{sent} messages, {wakes} bells")


def test_no_wake_up_is_lost_between_sleepers():
    """Ping-pong, both sides asleep between strokes: a lost wake-up would be a call that times out."""
    chooser = random.Random(3)
    strokes = [0]

    def here(side):
        balls = [3]

        def stroke(answer):
            assert isinstance(answer, bytes), f"after {strokes[0]} strokes: {answer}"
            strokes[0] += 1
            if strokes[0] > RACES:
                balls[0] -= 1
                if not balls[0]:
                    side.finish()
                return
            for _ in range(chooser.randrange(40)):  # let the other side be at another place of its way to sleep
                pass
            side.call(ECHO, b"ball", stroke)

        for _ in range(balls[0]):
            side.call(ECHO, b"ball", stroke)

    pair(echo, here)
    print(f"{strokes[0]} strokes")
