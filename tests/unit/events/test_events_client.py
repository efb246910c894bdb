"""Producers and consumers against a server over the production chunk store."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from event_server import EventServer

from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.events import EventsClient, InvalidEvent, Ordering
from millstream.format.events import SubView
from millstream.model.error_code import ErrorCode
from waits import until

WAIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with EventServer(tmp_path_factory.mktemp("events")) as one:
        yield one


@pytest.fixture(scope="module")
def client(server):
    with EventsClient(server.address, timeout_s=WAIT_S) as one:
        yield one


_numbers = iter(range(1000))


@pytest.fixture
def topic(client, server):
    name = f"topic{next(_numbers)}"
    client.create_topic(name)
    yield client.open_topic(name)
    server.before = None


def pushed(topic, events, **options):
    """Push and complete."""
    with topic.producer(**options) as producer:
        futures = [producer.push(metadata, data) for metadata, data in events]
    topic.complete()
    return [future.result(WAIT_S) for future in futures]


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_events_come_back_in_order_with_their_data(topic, batch_size, ordering):
    events = [({"n": n}, bytes([n]) * (n % 5)) for n in range(40)]
    ids = pushed(topic, events, batch_size=batch_size, ordering=ordering)
    assert sorted(ids) == list(range(40))
    if ordering is Ordering.STRICT:
        assert ids == list(range(40))
    with topic.consumer("c", batch_size=6) as consumer:
        found = list(consumer)
        assert [one.id for one in found] == list(range(40))
        by_id = dict(zip(ids, events, strict=True))
        for one in found:
            assert (one.metadata, b"".join(one.data)) == by_id[one.id]
            assert one.timestamp_ms > 0
        assert consumer.pull(WAIT_S).id is None
        assert consumer.pull(WAIT_S).id is None


def test_only_what_is_selected_is_fetched_into_the_buffers_of_the_allocator(topic):
    numpy = pytest.importorskip("numpy")
    pictures = [numpy.full((10, 10), n, dtype=numpy.uint16) + numpy.arange(10, dtype=numpy.uint16) for n in range(6)]
    pushed(topic, [({"n": n}, picture) for n, picture in enumerate(pictures)])
    targets = {}

    def select(metadata, descriptor):
        if metadata["n"] % 2:
            return None
        return descriptor.narrowed(SubView(20 * metadata["n"], 20))

    def allocate(metadata, selected):
        assert selected.size == 20
        targets[metadata["n"]] = numpy.zeros(8, dtype=numpy.uint16), bytearray(4)
        return list(targets[metadata["n"]])

    with topic.consumer("c", data_selector=select, data_allocator=allocate) as consumer:
        found = list(consumer)
    assert [len(one.data) for one in found] == [2, 0, 2, 0, 2, 0]
    for n in (0, 2, 4):
        assert found[n].data[0] is targets[n][0]
        assert targets[n][0].tobytes() + bytes(targets[n][1]) == pictures[n][n].tobytes()


def test_an_error_of_a_selector_or_allocator_is_of_its_event_alone(topic):
    pushed(topic, [({"n": n}, b"data") for n in range(4)])

    def select(metadata, descriptor):
        if metadata["n"] == 1:
            raise KeyError("which")
        return descriptor

    def allocate(metadata, selected):
        return [bytearray(3 if metadata["n"] == 2 else 4)]

    with topic.consumer("c", data_selector=select, data_allocator=allocate) as consumer:
        assert bytes(consumer.pull(WAIT_S).data[0]) == b"data"
        with pytest.raises(Rejected, match="event 1: KeyError"):
            consumer.pull(WAIT_S)
        with pytest.raises(Rejected, match="3 bytes for 4"):
            consumer.pull(WAIT_S)
        assert consumer.pull(WAIT_S).id == 3


def test_a_selector_that_exits_and_a_buffer_that_is_read_only_fail_their_events_alone(topic):
    pushed(topic, [({"n": n}, b"data") for n in range(4)])

    def select(metadata, descriptor):
        if metadata["n"] == 1:
            sys.exit("enough")
        return descriptor

    def allocate(metadata, selected):
        return [bytes(selected.size) if metadata["n"] == 2 else bytearray(selected.size)]

    with topic.consumer("c", data_selector=select, data_allocator=allocate) as consumer:
        assert bytes(consumer.pull(WAIT_S).data[0]) == b"data"
        with pytest.raises(Rejected, match="event 1: SystemExit: enough"):
            consumer.pull(WAIT_S)
        with pytest.raises(Rejected, match="read-only"):
            consumer.pull(WAIT_S)
        assert bytes(consumer.pull(WAIT_S).data[0]) == b"data"
        assert consumer.pull(WAIT_S).id is None


def test_a_pull_that_times_out_loses_nothing(topic):
    with topic.consumer("c") as consumer, topic.producer() as producer:
        for n in range(5):
            with pytest.raises(TimeoutError):
                consumer.pull(0.01)
            given_up = consumer.pull_soon()
            assert given_up.cancel()
            producer.push({"n": n}).result(WAIT_S)
            assert consumer.pull(WAIT_S).metadata == {"n": n}


def test_a_batch_that_is_not_full_leaves_when_somebody_waits_for_it(topic):
    producer = topic.producer(batch_size=100)
    first = producer.push({})
    assert not first.done()
    assert first.result(WAIT_S) == 0
    producer.push({})
    producer.flush().result(WAIT_S)
    last = producer.push({})
    producer.close()
    assert last.result(0) == 2
    with pytest.raises(Rejected, match="closed"):
        producer.push({})


def test_push_waits_for_room(topic, server):
    gate = threading.Event()
    server.before = lambda name, _: None if name != "PushEvents" or gate.is_set() else ErrorCode.NOT_LEADER_OR_FOLLOWER
    producer = topic.producer(batch_size=1, max_num_batches=1)
    first = [producer.push({"n": n}, timeout_s=WAIT_S) for n in range(2)]
    with pytest.raises(TimeoutError, match="no room"):
        producer.push({"n": 2}, timeout_s=0.01)
        producer.push({"n": 2}, timeout_s=0.01)
    gate.set()
    assert [one.result(WAIT_S) for one in first] == [0, 1]
    producer.close()


def test_a_batch_whose_answer_was_lost_is_stored_once(topic, server):
    lost = []

    def before(name, request):
        if name == "PushEvents" and len(lost) < 3:
            lost.append(server._partition(request)[1].append(bytes(request.batch)))
            raise ConnectionError

    server.before = before
    with topic.producer(batch_size=2) as producer:
        futures = [producer.push({"n": n}) for n in range(6)]
    assert [one.result(WAIT_S) for one in futures] == list(range(6))
    assert len(lost) == 3
    assert topic.end_ids()[0] == (0, 6)


def test_without_order_a_lost_answer_is_an_unknown_outcome(topic, server):
    def before(name, _):
        if name == "PushEvents":
            raise ConnectionError

    server.before = before
    producer = topic.producer(ordering=Ordering.LOOSE)
    with pytest.raises(OutcomeUnknown):
        producer.push({}).result(WAIT_S)


@pytest.mark.parametrize("first", [None, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_the_sequence_of_a_batch_in_doubt_is_not_given_to_the_next_one(topic, server, first):
    """A broker takes a batch with a known sequence for a repetition, and answers without storing it."""
    pushes = []

    def before(name, request):
        if name != "PushEvents":
            return None
        pushes.append(name)
        if len(pushes) == 1:
            server._partition(request)[1].append(bytes(request.batch))
            if first is None:
                raise ConnectionError
            return first
        return ErrorCode.POLICY_VIOLATION if len(pushes) == 2 else None

    server.before = before
    with topic.producer(batch_size=1) as producer:
        with pytest.raises(OutcomeUnknown):
            producer.push({"n": 0}).result(WAIT_S)
        assert producer.push({"n": 1}).result(WAIT_S) == 1
    assert topic.end_ids()[0] == (0, 2)


def test_without_order_a_batch_that_timed_out_at_the_broker_is_not_sent_again(topic, server):
    def before(name, request):
        if name == "PushEvents":
            server._partition(request)[1].append(bytes(request.batch))
            return ErrorCode.REQUEST_TIMED_OUT
        return None

    server.before = before
    with pytest.raises(OutcomeUnknown):
        topic.producer(ordering=Ordering.LOOSE).push({}).result(WAIT_S)
    assert topic.end_ids()[0] == (0, 1)


def test_a_refused_batch_fails_its_events_and_those_behind_go_on(topic, server):
    codes = iter([ErrorCode.POLICY_VIOLATION])
    server.before = lambda name, _: next(codes, None) if name == "PushEvents" else None
    with topic.producer(batch_size=2) as producer:
        futures = [producer.push({"n": n}) for n in range(4)]
        with pytest.raises(Rejected, match="on purpose"):
            futures[1].result(WAIT_S)
        assert [one.result(WAIT_S) for one in futures[2:]] == [0, 1]


def test_invalid_and_too_large_events_are_refused_at_once(client):
    name = f"topic{next(_numbers)}"
    client.create_topic(
        name,
        validator={"type": "schema", "schema": {"type": "object", "required": ["n"]}},
        serializer={"type": "schema", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        configs={"events.max.bytes": "100"},
    )
    topic = client.open_topic(name)
    producer = topic.producer()
    with pytest.raises(InvalidEvent, match="'n' is a required property"):
        producer.push({})
    with pytest.raises(Rejected, match=r"events\.max\.bytes is 100: split it"):
        producer.push({"n": 1}, b"x" * 100)
    with pytest.raises(Rejected, match="JSON text"):
        producer.push("{")
    with pytest.raises(Rejected, match="contiguous buffers, not object"):
        producer.push({"n": 1}, object())
    assert producer.push('{"n": 5}', [b"a", bytearray(b"b")]).result(WAIT_S) == 0
    producer.close()
    with topic.consumer("c") as consumer:
        event = consumer.pull(WAIT_S)
        assert (event.metadata, bytes(event.data[0])) == ({"n": 5}, b"ab")
    assert client.list_topics()[name]["validator"].startswith('{"type":"schema"')


def test_acknowledgements_last_never_go_back_and_seek_goes_anywhere(topic):
    with topic.producer() as producer:
        for n in range(6):
            producer.push({"n": n})
    with topic.consumer("one") as consumer:
        events = [consumer.pull(WAIT_S) for _ in range(6)]
        events[3].acknowledge().result(WAIT_S)
        events[0].acknowledge().result(WAIT_S)
        assert consumer.lag() == {0: 2}
    with topic.consumer("one") as consumer:
        assert consumer.pull(WAIT_S).id == 4
        consumer.seek(0, 1)
        assert [consumer.pull(WAIT_S).id for _ in range(5)] == [1, 2, 3, 4, 5]
        assert consumer.lag() == {0: 5}
    with topic.consumer("one") as consumer, topic.consumer("two") as other:
        assert (consumer.pull(WAIT_S).id, other.pull(WAIT_S).id) == (1, 0)


def test_a_lost_connection_costs_a_repetition(topic, server):
    with topic.producer() as producer, topic.consumer("c", batch_size=2) as consumer:
        for n in range(5):
            producer.push({"n": n}, b"data%d" % n).result(WAIT_S)
            server.drop_connections()
            event = consumer.pull(WAIT_S)
            assert (event.metadata, bytes(event.data[0])) == ({"n": n}, b"data%d" % n)


def test_partitions_by_key_and_by_target(client):
    name = f"topic{next(_numbers)}"
    client.create_topic(name, partitions_count=3, selector={"type": "key", "key": "k"})
    topic = client.open_topic(name)
    with topic.producer() as producer:
        futures = [producer.push({"k": n % 5, "n": n}) for n in range(30)]
        producer.push({"n": 99}, partition=1)
    assert all(one.result(WAIT_S) >= 0 for one in futures)
    topic.complete()
    with topic.consumer("all") as consumer:
        events = list(consumer)
    assert len(events) == 31
    for k in range(5):
        same = [one for one in events if one.metadata.get("k") == k]
        assert len({one.partition for one in same}) == 1
        assert [one.metadata["n"] for one in same] == list(range(k, 30, 5))
    with topic.consumer("some", targets=[1]) as consumer:
        assert {one.partition for one in consumer} == {1}
    with pytest.raises(Rejected, match="no partition 3"):
        topic.consumer("none", targets=[3])


def test_process_ends_by_count_by_silence_and_at_the_end(topic):
    with topic.producer() as producer:
        for n in range(5):
            producer.push({"n": n})
    seen = []
    with topic.consumer("c") as consumer:
        assert consumer.process(seen.append, max_events=2) == 2

        def all_are_seen():
            consumer.process(seen.append, timeout_s=0.2)
            return len(seen) == 5

        until(all_are_seen, "the last three do not come")
        assert consumer.process(seen.append, timeout_s=0.2) == 0
        topic.complete()
        assert consumer.process(seen.append) == 0
    assert [one.id for one in seen] == list(range(5))


def test_data_of_many_events_in_one_round_trip(topic, server):
    pushed(topic, [*(({}, b"%03d" % n) for n in range(50)), ({}, b"of another size")], batch_size=51)
    with topic.consumer("c", data_selector=lambda *_: None, data_allocator=lambda *_: []) as consumer:
        events = list(consumer)
    before = server.requests["FetchEventData"]
    wanted = [(one.id, one.descriptor.narrowed(SubView(1, 2))) for one in events if one.id % 2]
    assert [bytes(one) for one in topic.fetch_data(0, wanted)] == [b"%02d" % n for n in range(1, 50, 2)]
    assert server.requests["FetchEventData"] == before + 1
    with pytest.raises(Rejected):
        topic.fetch_data(0, [(0, events[50].descriptor)])


def test_data_are_fetched_from_a_leader_whose_chunks_are_cut_elsewhere(topic, server, monkeypatch):
    with topic.producer() as producer:
        for n in range(30):
            producer.push({"n": n}, bytes([n]) * 20)
    monkeypatch.setattr(server, "chunks_are_cut_elsewhere", True)

    def select(metadata, descriptor):
        return descriptor.narrowed(SubView(2, 5)) if metadata["n"] % 2 else descriptor

    found = {}
    with topic.consumer(
        "c", data_selector=select, data_allocator=lambda _, descriptor: [bytearray(descriptor.size)]
    ) as consumer:
        for _ in range(30):
            event = consumer.pull(WAIT_S)
            found[event.metadata["n"]] = b"".join(event.data)
    assert found == {n: bytes([n]) * (5 if n % 2 else 20) for n in range(30)}


def test_a_topic_fetches_data_by_id_from_a_leader_whose_chunks_are_cut_elsewhere(topic, server, monkeypatch):
    pushed(topic, [({}, bytes([n]) * 20) for n in range(30)])
    with topic.consumer("c", data_selector=lambda *_: None, data_allocator=lambda *_: []) as consumer:
        events = [consumer.pull(WAIT_S) for _ in range(30)]
    monkeypatch.setattr(server, "chunks_are_cut_elsewhere", True)
    wanted = [(n, events[n].descriptor.narrowed(SubView(0, n % 7))) for n in (5, 29, 3)]
    assert [bytes(one) for one in topic.fetch_data(0, wanted)] == [bytes([n]) * (n % 7) for n in (5, 29, 3)]


def test_a_member_that_its_group_forgot_joins_again_and_goes_on_where_it_acknowledged(topic, server):
    with topic.producer() as producer:
        for n in range(6):
            producer.push({"n": n})
    asked = []

    def before(name, request):
        if name == "ConsumerGroupHeartbeat":
            asked.append(request.member_epoch)
            if len(asked) == 2:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return None

    server.before = before
    with topic.consumer("c") as consumer:
        events = [consumer.pull(WAIT_S) for _ in range(6)]
        for event in events[:4]:
            event.acknowledge().result(WAIT_S)
        acknowledged = {(event.partition, event.id) for event in events[:4]}
        rest = {(event.partition, event.id) for event in events[4:]} - acknowledged
        again = {(one.partition, one.id) for one in (consumer.pull(WAIT_S) for _ in rest)}
    assert again == rest
    assert asked[:3] == [0, 1, 0]
    assert asked[-1] == -1


def test_a_group_that_refuses_its_member_ends_the_consumer_with_the_reason(topic, server):
    server.before = lambda name, _: ErrorCode.GROUP_MAX_SIZE_REACHED if name == "ConsumerGroupHeartbeat" else None
    with pytest.raises(Rejected, match="group c"):
        topic.consumer("c")


def test_the_program_is_fed_no_more_than_it_has_room_for(topic, server):
    with topic.producer() as producer:
        for n in range(40):
            producer.push({"n": n})
    before = server.requests["FeedEvents"]
    with topic.consumer("c", batch_size=2, max_num_batches=3) as consumer:
        first = consumer.pull(WAIT_S)
        assert first.id == 0
        assert len(consumer._mailbox) <= 6
        assert server.requests["FeedEvents"] - before <= 4
        assert [consumer.pull(WAIT_S).id for _ in range(39)] == list(range(1, 40))


def test_a_deleted_topic_ends_its_consumers_with_an_error(topic, client):
    with topic.consumer("c") as consumer:
        waiting = consumer.pull_soon()
        client.delete_topic(topic.name)
        with pytest.raises(Rejected, match="gone"):
            waiting.result(WAIT_S)
    assert not client.topic_exists(topic.name)
    with pytest.raises(Rejected, match="no event topic"):
        client.open_topic(topic.name)


def test_coroutines_await_what_threads_wait_for(topic):
    async def work():
        producer, consumer = topic.producer(batch_size=10), topic.consumer("c")
        assert await producer.push({"n": 1}) == 0
        producer.push({"n": 2})
        await producer.flush()
        events = [await consumer.pull_soon() for _ in range(2)]
        await events[1].acknowledge()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.pull_soon(), 0.01)
        producer.push({"n": 3})
        await producer.flush()
        assert (await consumer.pull_soon()).metadata == {"n": 3}
        consumer.close()
        return [one.metadata["n"] for one in events]

    assert asyncio.run(work()) == [1, 2]


def test_a_bad_address_is_refused_and_a_silent_one_is_unavailable():
    with pytest.raises(Rejected, match="host:port"):
        EventsClient("nowhere")
    with EventsClient("127.0.0.1:1", timeout_s=0.1) as client, pytest.raises(Unavailable, match="no broker answers"):
        client.list_topics()


SCRIPT = """
import os, sys, pickle
from millstream.events import EventsClient
client = EventsClient(sys.argv[1])
topic = client.open_topic(sys.argv[2])
producer = topic.producer(batch_size=1000)
for n in range(10):
    producer.push({"n": n})
if sys.argv[3] == "fork":
    producer.flush().result(60)
    child = os.fork()
    if not child:
        try:
            producer.push({"n": 99})
        except Exception as error:
            again = pickle.loads(pickle.dumps(client)).open_topic(sys.argv[2]).producer(batch_size=1000)
            again.push({"n": 10, "why": str(error)})
        sys.exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("how", ["exit", "fork"])
def test_exit_sends_what_was_pushed_and_a_fork_makes_its_own(topic, server, how):
    source = Path(__file__).parents[3] / "src"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.address, topic.name, how],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    topic.complete()
    with topic.consumer("c") as consumer:
        events = [one.metadata for one in consumer]
    assert [one["n"] for one in events] == list(range(10 if how == "exit" else 11))
    if how == "fork":
        assert "made before a fork" in events[-1]["why"]


def test_a_client_is_pickled_as_its_addresses(client):
    with pickle.loads(pickle.dumps(client)) as other:
        assert other.bootstrap == client.bootstrap


def test_a_client_that_is_closed_takes_its_open_consumers_out_of_their_group(topic, server):
    epochs = []

    def note(name, request):
        if name == "ConsumerGroupHeartbeat":
            epochs.append(request.member_epoch)

    with EventsClient(server.address, timeout_s=WAIT_S) as client:
        consumer = client.open_topic(topic.name).consumer("left open")
        server.before = note
    assert epochs
    assert epochs[-1] == -1, "no heartbeat follows the one that leaves"
    with pytest.raises(Rejected, match="closed"):
        consumer.pull(WAIT_S)
    consumer.close()
