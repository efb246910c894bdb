"""Members of one share group compete on three brokers, which are killed in turn; a checker judges what they saw.

``MILLSTREAM_SHARE_SECONDS`` (default 25) is how long brokers are killed, ``MILLSTREAM_SEED`` how members behave.
"""

import base64
import os
import random
import shutil
import time
from contextlib import closing

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from share_members import ACCEPT, GROUP, RELEASE, TOPIC, Addresses, Member

from millstream.core.share import partition as share_partition
from millstream.core.share.partition import Acknowledgement, Limits, Request, SharePartition
from millstream.core.share.runs import Runs
from millstream.core.share.stored import Initialize, Read, Report, StoredStates
from millstream.model.error_code import ErrorCode
from millstream.testing import cluster
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from raw_line import Line
from share_history import Delivered, History, Lost, Said
from waits import moment, until

SECONDS = float(os.environ.get("MILLSTREAM_SHARE_SECONDS", "25"))
SEED = int(os.environ.get("MILLSTREAM_SEED", "1"))
PARTITIONS, MEMBERS, LOCK_S, LIMIT = 6, 16, 15, 5


def set_up(three):
    with Line(three.brokers[1].bootstrap) as line:
        made = line.ask(CreateTopicsRequest([CreatableTopic(TOPIC, PARTITIONS, 3)], 60_000))
        assert made.topics[0].error_code == 0
    admin = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0})
    wanted = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": str(LOCK_S * 1000)}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def state_coordinator(addresses, partition):
    """Node that keeps the state of a share partition."""

    def ask(line):
        topic_id, _ = addresses.topic(line)
        name = base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
        asked = FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{GROUP}:{name}:{partition}"])
        (found,) = line.ask(asked).coordinators
        return None if found.error_code else (found.node_id,)

    found = addresses.any(ask)
    return None if found is None else found[0]


def data_leader(addresses, partition):
    found = addresses.any(addresses.topic)
    return None if found is None else found[1][partition][0]


def all_in_sync(three):
    found = AdminClient({"bootstrap.servers": three.bootstrap, "log_level": 0}).list_topics(timeout=60)
    parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
    return all(len(part.isrs) == 3 and part.leader > 0 for part in parts)


@pytest.mark.process
@pytest.mark.ci
@pytest.mark.timeout(SECONDS + 600)
def test_competing_members_of_a_group_through_kills_of_leaders_and_coordinators(tmp_path):
    history = History(LOCK_S, LIMIT)
    with cluster(3, shards=2, networks=False) as three:
        set_up(three)
        addresses = Addresses(three)
        members = [Member(f"member-{number:02}", addresses, history, SEED) for number in range(MEMBERS)]
        producer = ck.Producer({"bootstrap.servers": three.bootstrap, "enable.idempotence": True, "log_level": 0})
        for member in members:
            member.start()
        try:
            kill_in_turn(three, addresses, producer, members)
            assert producer.flush(120) == 0
            for member in members:
                member.drains = True
            until(lambda: is_drained(three, addresses), lambda: f"not all is acknowledged: {addresses.starts_of()}")
        finally:
            for member in members:
                member.stop()
            for member in members:
                member.join(60)
        history.starts = {index: start for index, (start, _) in addresses.starts_of().items()}
        assert [member.failure for member in members if member.failure] == []
        found = history.check()
        if found:
            (tmp_path / "events").write_text("\n".join(map(str, history.events)))
            for node, broker in three.brokers.items():
                shutil.copy(broker.log_path, tmp_path / f"{node}.log")
    said = sum(isinstance(event, Said) for event in history.events)
    given = sum(isinstance(event, Delivered) for event in history.events)
    lost = sum(isinstance(event, Lost) for event in history.events)
    print(f"{sum(history.starts.values())} records, {given} deliveries, {said} acknowledgements, {lost} lost answers")
    assert found == [], f"see {tmp_path}"
    assert len({event.member for event in history.events if isinstance(event, Delivered)}) == MEMBERS


def kill_in_turn(three, addresses, producer, members):
    """Produce, and kill one broker after the other: leaders of data, of states, and coordinators of the group."""
    chance = random.Random(SEED)
    roles = [
        lambda: data_leader(addresses, chance.randrange(PARTITIONS)),
        lambda: state_coordinator(addresses, chance.randrange(PARTITIONS)),
        lambda: addresses.coordinator(GROUP),
    ]
    limit, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < limit or number < 2 * len(roles):
        produce(producer, members, 300)
        victim = until(roles[number % len(roles)], "the role has no holder")
        addresses.alive.discard(victim)
        three.kill(victim)
        produce(producer, members, 300)
        three.restart(victim)
        addresses.starts[victim] += 1
        addresses.alive.add(victim)
        until(lambda: all_in_sync(three), "the replicas do not come into sync")
        number += 1


def produce(producer, members, count):
    for number in range(count):
        producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
        producer.poll(0)
        if number % 20 == 0:
            moment(0.1)
    assert [member.failure for member in members if member.failure] == []


def is_drained(three, addresses):
    """Whether every record was acknowledged."""
    starts = addresses.starts_of()
    if starts is None or set(starts) != set(range(PARTITIONS)):
        return False
    consumer = ck.Consumer({"bootstrap.servers": three.bootstrap, "group.id": "ends", "log_level": 0})
    with closing(consumer):
        try:
            places = [ck.TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
            ends = {place.partition: consumer.get_watermark_offsets(place, 60)[1] for place in places}
        except ck.KafkaException:
            return False  # a leader that has just started is not known to all
    return all(starts[index] == (ends[index], 0) for index in ends)


# What the checker finds in histories of the core, through fail-overs, with and without a bug


def played(seed=3):
    """A history of three members of the core itself, whose leader is replaced now and then."""
    chance = random.Random(seed)
    key, history, clock = ("g", b"t" * 16, 0), History(LOCK_S, LIMIT), [1_000_000]
    states = StoredStates()

    def settle(out):
        answers = list(out.answers)
        for write in out.writes:
            answers += settle(states.persisted(write.receipt, ErrorCode.NONE, 0, clock[0], 1))
        return answers

    states.loaded(0)
    settle(states.ask(Initialize(None, key, 1, 0), 0, 1))
    term, end, held = 0, 0, []

    def lead():
        ((_, answer),) = settle(states.ask(Read(None, key, term), clock[0], 1))
        image = answer.image
        return SharePartition(image.start, image.batches, limits=Limits(LOCK_S * 1_000_000), is_stored=True)

    def tick():
        clock[0] += 1_000
        return clock[0] / 1_000_000

    def store():
        write = core.take_write()
        if write is not None and chance.random() < 0.8:
            settle(states.ask(Report(None, key, 1, term, write.start, write.complete, write.batches), clock[0], 1))
            for one in core.written(ErrorCode.NONE, clock[0]):
                one.request(ErrorCode.NONE)

    core = lead()
    for _ in range(3_000):
        clock[0] += chance.randrange(1_000_000)
        roll, member = chance.random(), f"m{chance.randrange(3)}"
        lead_of = (("broker", 0), term)
        if roll < 0.05 or core.is_writing:
            core.close()
            term, held = term + 1, []
            core = lead()
        elif roll < 0.5:
            end += chance.randrange(5)
            offset, began = core.next_offset(), tick()
            if offset is None or offset >= end:
                continue
            request = Request(member, int(member[1]) + 1, chance.randint(1, 9), strict=True)
            for one in core.acquire(request, offset, [(offset, end - 1)], end, clock[0]):
                history.add(Delivered(member, lead_of, 0, one.first, one.last, one.count, began, tick()))
                held.append((member, one.first, one.last))
            store()
        elif held:
            member, first, last = held.pop(chance.randrange(len(held)))
            kind, began = chance.choice((ACCEPT, ACCEPT, RELEASE)), tick()

            def answered(error, said=(member, lead_of, 0, first, last, kind, began)):
                history.add(Said(*said, tick(), int(error)))

            error = core.acknowledge(member, [Acknowledgement(first, last, [kind])], answered, clock[0])
            if error is not None:
                answered(error)
            else:
                store()
            if core.is_writing:
                history.add(Said(member, lead_of, 0, first, last, kind, began, tick(), None))
    history.starts = {0: core.start}
    return history


def kinds(history):
    return {text.partition(":")[0] for text in history.check()}


def test_a_history_of_the_core_has_no_findings():
    history = played()
    assert history.starts[0] > 100 and history.check() == []


def test_an_acknowledgement_that_is_answered_before_it_is_stored_is_found(monkeypatch):
    acknowledge = SharePartition.acknowledge

    def at_once(self, member, given, request, now_us):
        error = acknowledge(self, member, given, lambda _: None, now_us)
        return ErrorCode.NONE if error is None else error

    monkeypatch.setattr(SharePartition, "acknowledge", at_once)
    assert "again" in kinds(played())


def test_a_lock_that_holds_nothing_is_found(monkeypatch):
    monkeypatch.setattr(SharePartition, "expire", lambda self, _: self._release(lambda _: True))
    assert "two holders" in kinds(played())


def test_a_start_that_passes_what_is_held_is_found(monkeypatch):
    def pass_all(self):
        for run in list(self.all):
            if not (run.state.is_final or run.state is share_partition.ACQUIRED):
                break
            self.drop_before(run.last + 1)

    monkeypatch.setattr(Runs, "pass_final", pass_all)
    assert "skipped" in kinds(played())
