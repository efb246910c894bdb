"""Event topics over three brokers: a leader that dies, and a replica that is filled with chunks."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from repairs_support import in_sync
from tiering import AT_ONCE, metric

from millstream.events import EventsClient
from millstream.format.names import parse_segment
from millstream.storage.chunks import ChunkDisk, ChunkReads, WantedData
from millstream.storage.disk import SystemDisk
from millstream.testing import cluster
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 150
NAME = "frames"
SMALL = {"topic.kind": "events", "events.partition": '{"max_events_per_chunk": 40}', "min.insync.replicas": "2"}


def event(number):
    return {"n": number}, number.to_bytes(4, "little") * (number % 500)


def create(three, replicas, **config):
    settings = {**SMALL, **{key.replace("_", "."): str(value) for key, value in config.items()}}
    topic = NewTopic(NAME, 1, replica_assignment=[replicas], config=settings)
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    admin.create_topics([topic])[NAME].result(60)
    until(lambda: in_sync(three, NAME), "all are in sync")


def leader_of(broker):
    topic = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(NAME, timeout=60).topics[NAME]
    return topic.partitions[0].leader


def push(client, numbers):
    with client.open_topic(NAME).producer(batch_size=7) as producer:
        futures = [producer.push(*event(number)) for number in numbers]
    assert [one.result(WAIT_S) for one in futures] == list(numbers)


def check(found, numbers):
    assert [one.id for one in found] == list(numbers)
    assert [(one.metadata, b"".join(one.data)) for one in found] == [event(number) for number in numbers]


def chunks(broker):
    return sorted((broker.data_dir / "topics").rglob("chunk-*.crc"))


def test_a_consumer_goes_on_with_metadata_and_data_when_the_leader_dies_under_it():
    with cluster(3) as three, EventsClient(three.bootstrap, timeout_s=WAIT_S) as client:
        create(three, [1, 2, 3])
        push(client, range(600))
        with client.open_topic(NAME).consumer("c", batch_size=50) as consumer:
            found = [consumer.pull(WAIT_S) for _ in range(150)]
            three.kill(leader_of(three.brokers[2]))
            push(client, range(600, 900))
            assert consumer.lag() == {0: 900}, "whichever broker is asked"
            found += [consumer.pull(WAIT_S) for _ in range(750)]
        check(found, range(900))
        wanted = [(one.id, one.descriptor) for one in found]
        data = client.open_topic(NAME).fetch_data(0, wanted)
        assert [bytes(one) for one in data] == [event(number)[1] for number in range(900)]


def test_a_replica_that_lost_everything_is_sent_whole_chunks_and_leads_with_them():
    with cluster(3, settings=AT_ONCE) as three, EventsClient(three.bootstrap, timeout_s=WAIT_S) as client:
        create(three, [2, 1, 3], retention_bytes=150_000)
        push(client, range(900))
        one = three.brokers[1]
        until(lambda: first_event(client) > 0, "old chunks are deleted")
        three.kill(2)
        three.replace(2)
        two = three.brokers[2]
        until(lambda: in_sync(three, NAME), "the new replica is in sync")
        until(lambda: metric(two, "millstream_replica_installs_total") >= 1, "it is sent chunks")
        assert len(chunks(two)) > 1
        until(lambda: leader_of(one) == 2, "the preferred replica leads again")
        first = first_event(client)
        with client.open_topic(NAME).consumer("c") as consumer:
            check([consumer.pull(WAIT_S) for _ in range(900 - first)], range(first, 900))
        push(client, range(900, 960))
        for broker in three.brokers.values():
            assert broker.stop() == 0
        begin, data = read_from_files(two)
        assert first <= begin < 960, "retention may have gone on"
        assert data == [event(number)[1] for number in range(begin, 960)]


def first_event(client):
    return client.open_topic(NAME).end_ids()[0].first_id


def read_from_files(broker):
    """The first event and the data of all, out of the chunk files of a broker that has stopped."""
    (directory,) = {path.parent for path in chunks(broker)}
    disk = ChunkDisk(SystemDisk())
    names = sorted(name for name in disk.list(str(directory)) if parse_segment(name))
    chunks_read = [disk.segment(f"{directory}/{name}").chunk for name in names]
    reads = ChunkReads(disk.files, chunks_read)
    begin = first = chunks_read[0].base_offset
    data = []
    try:
        while (fed := reads.feed(first, 1 << 60, 1 << 20, 1 << 20)) is not None:
            at = 0
            wanted = []
            for number, size in enumerate(fed.descriptor_sizes):
                wanted.append(WantedData(first + number, bytes(fed.descriptors[at : at + size])))
                at += size
            data += [b"".join(one) for one in reads.fetch_data(wanted, 1 << 30)]
            first += len(wanted)
    finally:
        disk.files.close()
    return begin, data
