"""Uploads in a process apart: blocks reach the warm cache whole or not at all, and who falls behind is hurried."""

import os
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.errors import Unavailable
from millstream.format.manifest import ArchiveId
from millstream.helper.channel import cut_messages
from millstream.storage.disk import SystemDisk
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers import upload_link
from millstream.tiers.messages import Failed, Upload, decode_command
from millstream.tiers.passing import PACKET_BYTES, BlockReceiver, BlockSender, block_pair
from millstream.tiers.upload_link import WAITS_US, UploadLink
from millstream.tiers.upload_process import UploadWorker
from sim.engine.objects import MemoryStore

OWNER = ArchiveId(uuid.UUID(int=7), 3)
SIZES = (1, PACKET_BYTES - 1, PACKET_BYTES, PACKET_BYTES + 1, 5 * PACKET_BYTES + 17)


def block_of(size, start=0):
    return bytes((start + place) % 251 for place in range(size))


class Taken(list):
    def __call__(self, owner, base_offset, block, newest):
        self.append((owner, base_offset, bytes(block), newest))


def packets_of(size, start=0):
    """The packets of a block, as a sender of its own makes them."""
    ours, theirs = block_pair()
    with ours, theirs, ThreadPoolExecutor(1) as sending:  # a socket holds a few packets
        sent = sending.submit(BlockSender(ours).send, OWNER, start, memoryview(block_of(size, start)), 99)
        packets = [theirs.recv(1 << 20) for _ in range(-(-size // PACKET_BYTES))]
        sent.result()
        return packets


def test_blocks_arrive_whole_and_in_order():
    taken = Taken()
    receiver = BlockReceiver(taken)
    for size in SIZES:
        for packet in packets_of(size, size):
            receiver.take(memoryview(packet))
    assert taken == [(OWNER, size, block_of(size, size), 99) for size in SIZES]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_sender_that_is_killed_halfway_costs_its_block_and_no_other(monkeypatch, kept):
    taken = Taken()
    receiver = BlockReceiver(taken)
    whole = packets_of(4 * PACKET_BYTES, 5)
    for packet in whole[:kept]:
        receiver.take(memoryview(packet))
    monkeypatch.setattr("os.getpid", lambda: 1)  # the next process; its first block has the same number
    for packet in packets_of(2 * PACKET_BYTES, 6):
        receiver.take(memoryview(packet))
    for packet in whole[kept:]:
        receiver.take(memoryview(packet))
    assert taken == [(OWNER, 6, block_of(2 * PACKET_BYTES, 6), 99)]


def test_packets_that_make_no_sense_are_left_out():
    taken = Taken()
    receiver = BlockReceiver(taken)
    first, second = packets_of(2 * PACKET_BYTES)
    for packet in (b"", b"x", second, first[:40], first, first, second, second):
        receiver.take(memoryview(packet))
    assert len(taken) == 1


def test_a_receiver_that_is_gone_ends_the_passing_and_not_the_upload():
    ours, theirs = block_pair()
    theirs.close()
    sender = BlockSender(ours)
    for _ in range(2):
        sender.send(OWNER, 0, memoryview(b"block"), 0)
    ours.close()
    sender.send(OWNER, 0, memoryview(b"block"), 0)


class Reactor:
    """Sends at once, and keeps what waits for a descriptor."""

    def __init__(self):
        self.readers = {}

    def add_reader(self, descriptor, done):
        self.readers[descriptor] = done

    def remove_reader(self, descriptor):
        self.readers.pop(descriptor, None)

    def end_of_turn(self, done):
        done()


class Process:
    """A process that only listens."""

    name = "upload 0"

    def __init__(self, idle, ends):
        self.idle, self.ends, self.killed = idle, ends, False
        self.pidfd, self._alive = socket.socketpair()
        self.pidfd, self.pid = self.pidfd.detach(), 1 << 30

    def kill(self):
        self.killed = True

    def close(self):
        for end in (*self.ends, self._alive):
            end.close()
        os.close(self.pidfd)

    def poll(self):
        return "was killed"

    def uploads(self):
        """The numbers of the uploads that it was sent."""
        found = bytearray()
        for end in self.ends:
            end.setblocking(False)
            try:
                found += end.recv(1 << 16)
            except BlockingIOError:
                continue
        return sorted(decode_command(message).id for message in cut_messages(found))


@pytest.fixture
def made(monkeypatch):
    made = type("Made", (), {})()
    made.processes, made.rested, made.ended, made.stats = [], [], [], StatsSlab(0, "shard")
    monkeypatch.setattr(upload_link, "make_idle", made.rested.append)

    def start(idle):
        pairs = [socket.socketpair() for _ in range(3)]
        made.processes.append(Process(idle, [theirs for _, theirs in pairs]))
        return made.processes[-1], [ours for ours, _ in pairs]

    made.reactor = Reactor()
    made.link = UploadLink(made.reactor, made.stats, start, lambda message: None, made.ended.append)
    yield made
    made.link.stop()
    for process in made.processes:
        process.close()


def upload_of(number, path="/nowhere/00000000000000000000.log"):
    return Upload(number, OWNER, path, 0, 0, 1, 100, 1, [], 0)


def test_the_first_process_is_idle_and_made_for_the_first_upload(made):
    assert not made.processes
    for number in range(7):
        made.link.send(upload_of(number))
    (process,) = made.processes
    assert process.idle
    assert process.uploads() == list(range(7))


def test_who_waits_too_long_gets_another_process_that_is_asked_for_all_that_was_not_answered(made):
    for number in range(5):
        made.link.send(upload_of(number))
    for number in (0, 3):
        made.link.answered(number)
    made.link.heed(WAITS_US, 10 * WAITS_US)
    assert not made.link.hurried, "not yet too long"
    made.link.heed(WAITS_US + 1, 10 * WAITS_US)
    before, now = made.processes
    assert before.killed and not now.idle
    assert now.uploads() == [1, 2, 4]
    assert made.stats.gauge("archive_uploads_behind").value == 1
    made.link.heed(2 * WAITS_US, 10 * WAITS_US)
    assert len(made.processes) == 2, "once is enough"


def test_a_topic_whose_segments_must_go_sooner_is_hurried_sooner(made):
    made.link.heed(3_000_001, 3_000_000)
    made.link.send(upload_of(1))
    assert not made.processes[0].idle, "the first process may be a hurried one"


def test_uploads_that_have_caught_up_are_idle_again_in_the_same_process(made):
    made.link.send(upload_of(1))
    made.link.heed(WAITS_US + 1, WAITS_US)
    made.link.heed(WAITS_US // 2, WAITS_US)
    assert made.link.hurried, "it does not swing"
    made.link.heed(WAITS_US // 4, WAITS_US)
    assert not made.link.hurried
    assert made.rested == [made.processes[-1].pid]
    assert len(made.processes) == 2 and not made.processes[-1].killed
    assert made.stats.gauge("archive_uploads_behind").value == 0


def test_a_process_that_ends_by_itself_is_told_and_one_that_was_replaced_is_not(made):
    made.link.send(upload_of(1))
    made.link.hurry()
    replaced, now = made.processes
    made.reactor.readers[replaced.pidfd]()
    assert not made.ended
    made.reactor.readers[now.pidfd]()
    assert made.ended == ["upload 0 was killed"]


def test_an_upload_that_fails_says_why_and_the_next_one_is_carried_out(tmp_path):
    worker = UploadWorker(MemoryStore(), SystemDisk(), 1e12)
    reply = worker.carry_out(upload_of(4, str(tmp_path / "00000000000000000000.log")))
    assert isinstance(reply, Failed)
    assert (reply.id, "No such file" in reply.message) == (4, True)

    class Away(MemoryStore):
        def put_stream(self, key, parts):
            raise Unavailable("the store is away")

    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    assert isinstance(UploadWorker(Away(), SystemDisk(), 1e12).carry_out(upload_of(5, str(tmp_path / "none"))), Failed)
