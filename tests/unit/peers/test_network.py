"""Connections between brokers over real sockets: what is sent arrives, and who is slow or gone costs nothing."""

import random
import socket

import pytest
from peer_nodes import CLUSTER
from raft_messages_support import append, beat, vote

from millstream.errors import OutcomeUnknown, Rejected, Retriable
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.peers import dial as dial_module
from millstream.peers.accepting import OPENINGS_MAX
from millstream.peers.contact_items import Followed, Led, LedAgain
from millstream.peers.frames import FrameKind, encode_frame
from millstream.peers.hello import encode_probe
from millstream.peers.items import PAYLOAD_BYTES_MAX, Leaders, Leadership, Status

LEADS = Leaders(full=True, leaderships=(Leadership(1, 2, 1),))


def connect(world, *nodes):
    for node in nodes:
        for other in nodes:
            if other is not node:
                node.network.connect(NodeId(other.id))
    world.run(lambda: all(a.network.is_connected(b.id) for a in nodes for b in nodes if a is not b))


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_many_turns_arrive_whole_and_in_order(world, seed):
    rng = random.Random(seed)
    nodes = [world.node(node, arena_bytes=256 << 20) for node in (1, 2, 3)]
    connect(world, *nodes)
    sent = {(a.id, b.id): [] for a in nodes for b in nodes if a is not b}

    left = 12

    def turn():
        nonlocal left
        for a in nodes:
            for b in nodes:
                if a is b:
                    continue
                for _ in range(rng.randrange(4)):
                    number = len(sent[a.id, b.id])
                    size = rng.choice([0, 1, 90, 5_000, 131_072, 400_000])
                    data = rng.randbytes(size)
                    item = append(rng.randrange(5), number) if size else vote(rng.randrange(5), number)
                    if a.network.send(b.replica, item, a.chain(data) if size else None):
                        sent[a.id, b.id].append((item.group, item.message, data))
        left -= 1
        if left:
            world.reactor.call_later(rng.randrange(2_000), turn)

    turn()
    world.run(lambda: not left and all(len(node.got) == total(sent, node.id) for node in nodes))
    for node in nodes:
        for other in nodes:
            if other is not node:
                got = [(g.item.group, g.item.message, g.body) for g in node.got if g.sender == other.replica]
                assert got == sent[other.id, node.id], f"seed {seed}"


def total(sent, node):
    return sum(len(items) for (_, to), items in sent.items() if to == node)


def test_all_of_a_turn_leaves_in_one_frame(world, monkeypatch):
    frames = []
    a, b = world.node(1), world.node(2)
    connect(world, a, b)
    original = dial_module.encode_frame
    monkeypatch.setattr(dial_module, "encode_frame", lambda *parts: frames.append(1) or original(*parts))
    for group in range(50):
        a.network.send(b.replica, vote(group))
    a.network.beats(b.replica, [beat(group, 1) for group in range(100, 200)], reply=False)
    a.network.say(b.id, Leaders(False, (Leadership(1, 2, 1),)))
    a.network.say(b.id, Status(5, 6, 7))
    world.run(lambda: len(b.got) == 53)
    assert len(frames) == 1
    assert [len(got.beats) for got in b.beats()] == [100]
    assert (a.replica, Status(5, 6, 7)) in b.got


def test_without_a_connection_messages_are_refused_and_memory_comes_back(world):
    a = world.node(1)
    assert not a.network.send(2, append(1), a.chain(bytes(1_000)))
    assert not a.network.say(2, Status(1, 1, 1))
    a.network.beats(2, [beat(1, 1)], reply=False)
    assert a.arenas[0].live_fragments == 0


def test_a_peer_that_comes_back_is_connected_again(world, capfd):
    a, b = world.node(1), world.node(2)
    connect(world, a, b)
    port = b.port
    b.close()
    world.run(lambda: not a.network.is_connected(2))
    assert a.lost == [b.replica]
    assert not a.network.send(b.replica, append(1), a.chain(bytes(1_000)))
    again = world.node(2, port=port)
    world.run(lambda: a.network.is_connected(2))
    assert a.network.send(again.replica, vote(7))
    world.run(lambda: again.raft(7))
    lines = capfd.readouterr().err.splitlines()
    about = [line for line in lines if "broker 2" in line and "broker 2, shard" not in line]
    assert len(about) <= 3, "one line for each change, whatever number of attempts"


def unread(world):
    """Two connected brokers of which the second reads nothing, and what lets it read."""
    a = world.node(1)
    b = world.node(2)
    taken = []
    b.accepting._on_hello = lambda sock, hello, head: taken.append(sock) or b.on_hello(sock, hello, head)
    a.network.connect(2)
    world.run(lambda: a.network.is_connected(2))
    sock = taken[0]
    world.reactor.remove_reader(sock.fileno())
    accepted = next(iter(b.network._accepted))
    return a, b, lambda: world.reactor.add_reader(sock.fileno(), accepted._on_readable)


def test_a_peer_that_does_not_read_costs_a_bounded_queue_and_gets_the_newest_heartbeats(world):
    a, b, read = unread(world)
    refused = 0
    for turn in range(200):
        refused += not a.network.send(b.replica, append(1, turn), a.chain(bytes(100_000)))
        a.network.beats(b.replica, [beat(1, turn), beat(2, turn)], reply=False)
        turns = []
        world.run(lambda turns=turns: turns.append(1) or len(turns) > 1)
    assert refused
    queued = a.network._dials[2, 0].link.queued_bytes
    assert queued <= dial_module.QUEUE_BYTES_MAX + 200_000
    read()
    world.run(lambda: b.beats() and b.beats()[-1].beats == (beat(1, 199), beat(2, 199)))
    assert len(b.beats()) < 100, "old heartbeats are replaced, not queued"
    assert len(b.raft()) == 200 - refused


def test_who_said_something_that_a_full_queue_refused_is_told_when_the_queue_is_empty(world):
    a, b, read = unread(world)
    told = []
    a.network.on_opened = lambda node, shard: told.append((node, shard)) or a.network.say(2, LEADS)
    while a.network.say(2, Leaders(full=False, leaderships=())):
        for _ in range(2):
            a.network.send(b.replica, append(1), a.chain(bytes(1 << 20)))
        turns = []
        world.run(lambda turns=turns: turns.append(1) or len(turns) > 3)
    assert not told
    read()
    world.run(lambda: (a.replica, LEADS.leaderships, True) in b.got)
    assert told == [(2, 0)], "once, and not for what is taken again"


def test_a_body_without_memory_is_dropped_and_everything_else_arrives(world):
    a, b = world.node(1), world.node(2, arena_bytes=1 << 20)
    connect(world, a, b)
    data = bytes(600_000)
    a.network.send(b.replica, append(1), a.chain(data))
    a.network.send(b.replica, vote(2))
    world.run(lambda: b.raft(2))
    a.network.send(b.replica, append(3), a.chain(bytes(1_000)))
    world.run(lambda: b.raft(3))
    assert not b.raft(1)


def test_messages_for_a_disk_that_was_replaced_are_refused(world):
    a, b = world.node(1), world.node(2)
    connect(world, a, b)
    assert not a.network.send(b.replica | 1 << 32, append(1), a.chain(bytes(10)))
    assert a.network.send(b.replica, vote(1))


def test_a_disk_that_was_replaced_loses_its_open_connections_and_the_new_one_is_dialled(world):
    a, b, c = world.node(1), world.node(2), world.node(3)
    connect(world, a, b, c)
    a.network.drop_retired(2, {bytes([9]) * 16})
    assert a.network.is_connected(2), "another disk was replaced"
    successor = world.node(2, disk=9)  # b has closed nothing: its process may be paused
    a.network.drop_retired(2, {bytes([2]) * 16})
    assert not a.network.is_connected(2)
    assert a.network.is_connected(3)
    world.run(lambda: a.network.is_connected(2) and a.replica in b.lost)
    assert a.network.send(successor.replica, vote(7))
    world.run(lambda: successor.raft(7))
    assert not b.raft(7)
    b.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"cluster": "another"}, f"this is cluster {CLUSTER}, not another"), ({}, "broker 2 is no member")],
)
def test_who_is_not_admitted_is_told_why(world, capfd, options, words):
    a, b = world.node(1), world.node(2, **options)
    a.known = {a.replica}
    b.network.connect(1)
    seen = []
    world.run(lambda: seen.append(capfd.readouterr().err) or words in "".join(seen))
    text = "".join(seen)
    assert "no connection to broker 1 yet: refused: " in text or "refused a connection" in text
    assert not b.network.is_connected(1)


def test_a_message_at_the_wrong_shard_is_passed_on_once_and_the_next_goes_home(world):
    a, b = world.node(1), world.node(2, shards=2, homes={5: 1})
    connect(world, a, b)
    a.network.send(b.replica, append(5, 1), a.chain(b"entries"))
    a.network.beats(b.replica, [beat(5, 3), beat(6, 3)], reply=False)
    world.run(lambda: b.raft(5) and len(b.beats()) == 2)
    assert [(got.shard, got.body) for got in b.raft(5)] == [(1, b"entries")]
    assert {(got.shard, got.beats) for got in b.beats()} == {(0, (beat(6, 3),)), (1, (beat(5, 3),))}
    world.run(lambda: a.network._homes.get((b.replica, 5)) == 1)
    world.run(lambda: a.network.send(b.replica, vote(5, 9)))
    world.run(lambda: len(b.raft(5)) == 2)
    assert (b.raft(5)[1].shard, b.raft(5)[1].item.message.log_end.position) == (1, 9)
    world.run(lambda: b.networks[1].send(a.replica, vote(5)))
    world.run(lambda: a.raft(5))


def test_a_group_answers_where_its_messages_come_from(world):
    a, b = world.node(1), world.node(2, shards=2)
    connect(world, a, b)
    world.run(lambda: b.networks[1].send(a.replica, vote(8)))
    world.run(lambda: a.raft(8))
    assert a.network._home(b.replica, 8) == 1


def test_calls_are_answered_in_any_order_and_errors_keep_their_class_and_code(world):
    a, b = world.node(1), world.node(2)
    connect(world, a, b)
    waiting = {}
    b.network.calls.serve(1, lambda sender, payload, timeout_ms, done: waiting.update({payload: done}))

    def refuse(sender, payload, timeout_ms, done):
        raise Rejected("no such topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    b.network.calls.serve(2, refuse)
    answers = {}
    for name in (b"one", b"two"):
        a.network.calls.call(2, 1, name, 30_000, lambda answer, name=name: answers.update({name: answer}))
    a.network.calls.call(2, 2, b"", 30_000, lambda answer: answers.update(refused=answer))
    a.network.calls.call(2, 3, b"", 30_000, lambda answer: answers.update(unknown=answer))
    a.network.calls.call(2, 1, bytes(PAYLOAD_BYTES_MAX + 1), 30_000, lambda answer: answers.update(large=answer))
    world.run(lambda: len(waiting) == 2 and len(answers) == 3)
    waiting[b"two"](b"2")
    waiting[b"one"](b"1")
    world.run(lambda: len(answers) == 5)
    assert (answers[b"one"], answers[b"two"]) == (b"1", b"2")
    assert isinstance(answers["refused"], Rejected)
    assert answers["refused"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "knows no request 3" in answers["unknown"].message
    assert answers["large"].code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_call_that_cannot_leave_is_retriable_and_one_that_left_is_unknown(world):
    a, b = world.node(1), world.node(2)
    answers = []
    a.network.calls.call(2, 1, b"", 30_000, answers.append)
    world.run(lambda: answers)
    assert isinstance(answers[0], Retriable)
    connect(world, a, b)
    b.network.calls.serve(1, lambda sender, payload, timeout_ms, done: answers.append(done))
    a.network.calls.call(2, 1, b"", 20, answers.append)
    world.run(lambda: len(answers) == 3)
    assert isinstance(answers[2], OutcomeUnknown)
    answers[1](b"late")
    a.network.calls.call(2, 1, b"", 30_000, answers.append)
    world.run(lambda: len(answers) == 4)
    b.close()
    world.run(lambda: len(answers) == 5)
    assert isinstance(answers[4], OutcomeUnknown)
    answers[3](b"the connection is gone")


def test_strangers_are_closed_and_keep_no_broker_out(world):
    a, b = world.node(1), world.node(2)
    address = ("127.0.0.1", a.port)
    silent = [socket.create_connection(address) for _ in range(OPENINGS_MAX + 5)]
    garbage = [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(20),
        b"\x16\x03\x01" + bytes(60),
        b"".join(encode_frame(FrameKind.TURN, [b"x"])),
        b"".join(encode_frame(FrameKind.HELLO, [b"\xc1"])),
    ]
    for data in garbage:
        sock = socket.create_connection(address)
        sock.sendall(data)
        silent.append(sock)
    connect(world, a, b)
    for sock in silent[-len(garbage) :]:
        sock.setblocking(False)
    world.run(lambda: all(ended(sock) for sock in silent[-len(garbage) :]))
    for sock in silent:
        sock.close()


def ended(sock):
    try:
        return sock.recv(100) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_garbage_on_an_open_connection_ends_it_and_it_is_dialled_again(world):
    a, b = world.node(1), world.node(2)
    connect(world, a, b)
    link = a.network._dials[2, 0].link
    link.send([b"\x00" * 64])
    world.run(lambda: not a.network.is_connected(2))
    world.run(lambda: a.network.is_connected(2))
    assert a.network._dials[2, 0].link is not link


def test_a_probe_is_answered_with_what_the_broker_is(world):
    a = world.node(1)
    sock = socket.create_connection(("127.0.0.1", a.port))
    sock.sendall(b"".join(encode_probe(a.says())))
    sock.setblocking(False)
    data = bytearray()

    def answered():
        try:
            part = sock.recv(4096)
        except BlockingIOError:
            return False
        data.extend(part)
        return not part

    world.run(answered)
    assert bytes(data) == b"".join(encode_probe(a.says(), answer=True))
    sock.close()


def test_a_host_without_an_address_is_tried_again(world, capfd):
    from millstream.peers.hello import Seed

    a = world.node(1)
    world.addresses[2] = Seed("no-such-host.invalid", 1)
    a.network.connect(2)
    seen = []
    world.run(lambda: seen.append(capfd.readouterr().err) or "no connection to broker 2 yet" in "".join(seen))
    b = world.node(2)
    world.run(lambda: a.network.is_connected(b.id))


def test_a_set_of_groups_and_its_answer_travel_on_the_connection_to_the_shard_where_they_live(world):
    one, two = world.node(1), world.node(2, shards=2)
    connect(world, one, two)
    one.network.send(two.replica, vote(7))
    one.network._homes[two.replica, 7] = 1
    one.network.send(two.replica, vote(7))
    place = one.network.place(two.replica, 7)
    assert place == 1
    assert not one.network.takes_contact(two.replica, 1)  # is being dialled
    assert not one.network.contact(two.replica, 1, LedAgain(5, 1))
    world.run(lambda: one.network.takes_contact(two.replica, 1))
    assert one.network.contact(two.replica, 1, Led(5, 1, (7,), (3,)))
    assert one.network.contact(two.replica, 1, LedAgain(5, 1))
    world.run(
        lambda: (
            [got.item for got in one.got if hasattr(got, "place")] == [Followed(5, 1, True, (7,)), Followed(5, 1, True)]
        )
    )
    assert [(got.shard, got.item) for got in two.got if isinstance(getattr(got, "item", None), Led | LedAgain)] == [
        (1, Led(5, 1, (7,), (3,))),
        (1, LedAgain(5, 1)),
    ]
    assert {got.place for got in one.got if hasattr(got, "place")} == {1}


def test_a_broker_of_an_older_release_is_sent_no_sets(world):
    one, two = world.node(1), world.node(2, version=1)
    connect(world, one, two)
    assert not one.network.takes_contact(two.replica, 0)
    assert not one.network.contact(two.replica, 0, LedAgain(5, 1))
