"""Messages between reactor and worker: whole, in order, however the socket cuts them; the reactor never blocks."""

import random

from millstream.helper.channel import HelperChannel, ReactorChannel, channel_pair, cut_messages


class ByHand:
    """A reactor whose callbacks the test runs."""

    def __init__(self) -> None:
        self.readers: dict = {}
        self.writers: dict = {}
        self.enders: list = []

    def add_reader(self, fd, callback):
        self.readers[fd] = callback

    def add_writer(self, fd, callback):
        self.writers[fd] = callback

    def remove_reader(self, fd):
        del self.readers[fd]

    def remove_writer(self, fd):
        del self.writers[fd]

    def end_of_turn(self, callback):
        self.enders.append(callback)

    def turn(self):
        enders, self.enders = self.enders, []
        for ender in enders:
            ender()


def test_messages_are_cut_whatever_the_pieces() -> None:
    rng = random.Random(4)
    sent = [rng.randbytes(rng.choice([0, 1, 5, 3000])) for _ in range(200)]
    stream = b"".join(len(one).to_bytes(4, "little") + one for one in sent)
    data, got, at = bytearray(), [], 0
    while at < len(stream):
        step = rng.randint(1, 700)
        data += stream[at : at + step]
        at += step
        got += list(cut_messages(data))
    assert got == sent
    assert not data


def test_what_the_socket_does_not_take_is_sent_later_in_order() -> None:
    reactor = ByHand()
    ours, theirs = channel_pair()
    got: list[bytes] = []
    channel = ReactorChannel(reactor, ours, got.append)
    worker = HelperChannel(theirs)
    sent = [bytes([n % 251]) * 20_000 for n in range(100)]
    for message in sent[:50]:
        channel.send(message)
    reactor.turn()
    assert reactor.writers
    for message in sent[50:]:
        channel.send(message)
    reactor.turn()
    arrived: list[bytes] = []
    while len(arrived) < 100:
        arrived += worker.receive()
        for push in list(reactor.writers.values()):
            push()
    assert arrived == sent
    assert not reactor.writers
    worker.send([b"one", b"two"])
    next(iter(reactor.readers.values()))()
    assert got == [b"one", b"two"]
    channel.close()
    assert worker.receive() == []
    theirs.close()


def test_what_a_worker_said_before_it_ended_is_heard_to_its_end() -> None:
    reactor = ByHand()
    ours, theirs = channel_pair()
    got: list[bytes] = []
    channel = ReactorChannel(reactor, ours, got.append)
    channel.receive_all()
    assert not got
    said = [bytes([n]) * 1_000 for n in range(100)]
    HelperChannel(theirs).send(said)
    theirs.close()
    for _ in range(2):
        channel.receive_all()
        assert got == said
    assert not reactor.readers
    channel.close()


def test_a_worker_that_is_gone_is_listened_to_no_more() -> None:
    reactor = ByHand()
    ours, theirs = channel_pair()
    channel = ReactorChannel(reactor, ours, lambda _: None)
    theirs.close()
    channel.send(b"hello")
    reactor.turn()
    next(iter(reactor.readers.values()))()
    assert not reactor.readers
    ours.close()


class Slow:
    """A socket that takes little at once."""

    def __init__(self, end) -> None:
        self.fileno = end.fileno
        self.close = end.close
        self.taken = b""
        self.buffers: list[object] = []

    def send(self, data) -> int:
        view = memoryview(data)
        if view.obj not in self.buffers:
            self.buffers.append(view.obj)
        self.taken += view[:1000]
        return min(1000, len(view))


def test_a_long_message_is_not_copied_for_each_piece_that_the_socket_takes() -> None:
    reactor = ByHand()
    ours, theirs = channel_pair()
    channel = ReactorChannel(reactor, ours, lambda _: None)
    channel._socket = slow = Slow(ours)
    sent = [bytes(50_000), bytes([1]) * 700]
    channel.send(sent[0])
    reactor.turn()
    channel.send(sent[1])
    reactor.turn()
    while reactor.writers:
        next(iter(reactor.writers.values()))()
    assert list(cut_messages(bytearray(slow.taken))) == sent
    assert len(slow.buffers) == len(sent)
    channel.close()
    theirs.close()


def test_a_channel_that_is_closed_sends_nothing_more() -> None:
    reactor = ByHand()
    ours, theirs = channel_pair()
    channel = ReactorChannel(reactor, ours, lambda _: None)
    channel.send(b"not sent before the turn ends")
    channel.close()
    channel.send(b"too late")
    reactor.turn()
    assert theirs.recv(100) == b""
    assert not reactor.writers
    theirs.close()
