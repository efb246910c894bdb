"""What is to be sent leaves in order, through writes of any size."""

import random

from millstream.iobuf.outbox import MAX_BYTES, MAX_VIEWS, Outbox


class Held:
    def __init__(self, log, name):
        self.log = log
        self.name = name

    def release(self):
        self.log.append(self.name)


def drain(outbox, take):
    out = bytearray()
    while outbox.queued_bytes:
        data = b"".join(outbox.next_views())
        count = min(take(), len(data))
        out += data[:count]
        outbox.sent(count)
    return bytes(out)


def test_bytes_leave_in_order_whatever_the_kernel_takes():
    rng = random.Random(1)
    outbox = Outbox()
    expected = bytearray()
    for _ in range(300):
        parts = [rng.randbytes(rng.randint(1, 40)) for _ in range(rng.randint(1, 5))]
        outbox.push(parts, sum(map(len, parts)), None)
        expected += b"".join(parts)
    assert drain(outbox, lambda: rng.randint(1, 100)) == bytes(expected)


def test_no_more_than_a_mib_is_handed_over_whatever_the_buffers_are():
    outbox = Outbox()
    parts = [bytes([n]) * size for n, size in enumerate((1000, 1 << 20, 3 << 20, 10))]
    for count in (1, 2, 4):
        outbox.push(parts[-count:], sum(map(len, parts[-count:])), None)
        handed = []

        def whole(handed=handed):
            handed.append(sum(map(len, outbox.next_views())))
            return 1 << 30

        assert drain(outbox, whole) == b"".join(parts[-count:])
        assert max(handed) <= MAX_BYTES


def test_a_holder_is_released_exactly_when_its_last_byte_is_gone():
    released = []
    outbox = Outbox()
    outbox.push([b"aaaa", b"bb"], 6, Held(released, "first"))
    outbox.push([b"cc"], 2, Held(released, "second"))
    outbox.sent(5)
    assert released == []
    outbox.sent(1)
    assert released == ["first"]
    outbox.sent(2)
    assert released == ["first", "second"]


def test_dropping_releases_everything_once():
    released = []
    outbox = Outbox()
    outbox.push([b"aaaa"], 4, Held(released, "first"))
    outbox.push([b"bbbb"], 4, Held(released, "second"))
    outbox.sent(4)
    outbox.drop()
    outbox.drop()
    assert released == ["first", "second"]
    assert outbox.queued_bytes == 0


def test_one_send_is_bounded_in_views_and_bytes():
    outbox = Outbox()
    for _ in range(2 * MAX_VIEWS):
        outbox.push([bytes(1000)], 1000, None)
    assert len(outbox.next_views()) == MAX_VIEWS
    large = Outbox()
    for _ in range(8):
        large.push([bytes(MAX_BYTES // 2)], MAX_BYTES // 2, None)
    assert sum(map(len, large.next_views())) == MAX_BYTES


def test_small_answers_leave_as_one_buffer_and_a_partial_send_goes_on_within_it():
    released = []
    outbox = Outbox()
    for text in (b"one", b"two", b"three"):
        outbox.push([text], len(text), Held(released, text))
    (joined,) = outbox.next_views()
    assert joined == b"onetwothree"
    outbox.sent(4)
    assert released == [b"one"]
    assert b"".join(outbox.next_views()) == b"wothree"
    outbox.sent(7)
    assert released == [b"one", b"two", b"three"]
    assert outbox.queued_bytes == 0


def test_of_what_is_lent_the_part_that_was_not_sent_is_told():
    outbox = Outbox()
    outbox.push([b"ours"], 4, None)
    outbox.push([b"lent"], 4, Held([], "first"))
    outbox.push([b"lent again"], 10, Held([], "second"))
    outbox.lent = 14
    told = [outbox.lent_unsent]
    for count in (4, 3, 1, 10):
        outbox.sent(count)
        told.append(outbox.lent_unsent)
    assert told == [14, 14, 11, 10, 0]
