"""The steps of an exactly-once write, without Spark: whatever dies between two of them, each row is there once."""

import contextlib
import itertools
import json
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.cli.__main__ import main
from millstream.client.coordinators import Coordinators
from millstream.client.transactional import end_transactions
from millstream.errors import MillstreamError, Rejected
from millstream.spark.exactly_once import (
    Write,
    WriteSettings,
    abort_tasks,
    commit_tasks,
    is_done,
    last_write,
    named,
    write_task,
)
from millstream.testing import Broker
from waits import Patience

pytestmark = pytest.mark.process
QUIET = {"log_level": 0}
PARTITIONS = 2


@pytest.fixture(scope="module", params=["millstream", pytest.param("kafka", marks=pytest.mark.slow)])
def bootstrap(request):
    if request.param == "kafka":
        from bench.peers.kafka import kafka

        with kafka() as peer:
            yield peer.bootstrap
    else:
        with Broker() as broker:
            yield broker.bootstrap


@pytest.fixture
def job(bootstrap):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap} | QUIET)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    return Job(bootstrap, topic)


class Job:
    """A write of some tasks to a topic; ``rows[i]`` are those of task i."""

    def __init__(self, bootstrap, topic):
        self.settings = WriteSettings(bootstrap, "c", 60.0, topic, "lz4", 1000, 60_000)
        self.topic = topic
        self.name = f"q-{topic}"

    def at(self, number):
        return Write(self.name, number)

    def write(self, number, tasks, settings=None):
        return [
            write_task(settings or self.settings, self.at(number), task, batches(rows))
            for task, rows in enumerate(tasks)
        ]

    def commit(self, number, done, **more):
        commit_tasks(self.settings, self.at(number), done, **more)

    def end_one(self, number, done, which):
        """A driver that dies after it has committed one task only."""
        from millstream.spark import exactly_once as module

        with self.settings.cluster() as cluster:
            coordinators = Coordinators(cluster)
            module._agree_on_plan(coordinators, self.at(number), module._plan_of(done), (self.topic, 0))
            assert end_transactions(coordinators, [done[which].open], commit=True, timeout_s=60) == {}

    def read(self):
        """All values that a read_committed consumer gets, the waits for open transactions not included."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.settings.bootstrap,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
            | QUIET
        )
        consumer.assign([TopicPartition(self.topic, index, 0) for index in range(PARTITIONS)])
        values, ends, patience = [], set(), Patience()
        while len(ends) < PARTITIONS:
            patience.check(ends)
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value().decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
        consumer.close()
        return values


def batches(rows):
    for some in itertools.batched(rows, 40) if hasattr(itertools, "batched") else [rows]:
        yield pa.RecordBatch.from_pydict({"key": [row[:1] for row in some], "value": list(some)})


def rows_of(name, count=100):
    return [f"{name}{number}" for number in range(count)]


A, B, C = rows_of("a"), rows_of("b"), rows_of("c")


def test_rows_appear_with_the_commit_and_in_order(job):
    done = job.write(0, [A, [], B])
    assert [task.rows for task in done] == [100, 0, 100]
    assert job.read() == []
    job.commit(0, done)
    found = job.read()
    assert [value for value in found if value[0] == "a"] == A
    assert [value for value in found if value[0] == "b"] == B
    job.commit(1, job.write(1, [C]))
    assert sorted(job.read()) == sorted(A + B + C)


def test_the_marks_of_a_write_are_no_lag(job, capsys):
    for number in range(3):
        job.commit(number, job.write(number, [A]))
    for group in (job.name, job.at(0).task_id(0)):
        assert main(["group", "describe", group, "--json", "--bootstrap", job.settings.bootstrap]) == 0
        described = json.loads(capsys.readouterr().out)
        assert max(one["committed"] for one in described["partitions"]) == 3
        assert described["lag"] == 0


def test_a_failed_task_leaves_nothing_and_is_repeated(job):
    def failing():
        yield from batches(A)
        raise OSError("seeded")

    with pytest.raises(OSError, match="seeded"):
        write_task(job.settings, job.at(0), 0, failing())
    job.commit(0, job.write(0, [A]))
    assert sorted(job.read()) == sorted(A)


def test_a_driver_that_died_before_its_commit_is_fenced(job):
    gone = job.write(0, [A, B])
    done = job.write(0, [A, B])
    with pytest.raises(Rejected, match=r"another attempt of this task.*speculation"):
        job.commit(0, gone)
    job.commit(0, done)
    job.commit(0, done)  # a commit whose response was lost is asked for again
    assert sorted(job.read()) == sorted(A + B)


@pytest.mark.parametrize("committed", [0, 1])
def test_a_driver_that_died_between_commits_leaves_the_rest_to_the_repetition(job, committed):
    job.end_one(0, job.write(0, [A, B]), committed)
    assert len(job.read()) <= 100
    done = job.write(0, [A, B[::-1]])  # a shuffle may bring the rows in another order
    assert [task.open is None for task in done] == [committed == 0, committed == 1]
    job.commit(0, done)
    assert sorted(job.read()) == sorted(A + B)
    assert all(task.open is None for task in job.write(0, [A, B]))


@pytest.mark.parametrize("tasks", [[C, B], [A, C], [A + B], [A, B, C], [A[1:], [*B, A[0]]]])
def test_a_repetition_with_other_rows_is_refused_if_a_part_is_committed(job, tasks):
    job.end_one(0, job.write(0, [A, B]), 1)
    done = job.write(0, tasks)
    with pytest.raises(Rejected, match=r"not deterministic \(rand\(\)"):
        job.commit(0, done)
    abort_tasks(job.settings, done)
    assert sorted(job.read()) == sorted(B)
    job.commit(0, job.write(0, [A, B]))
    assert sorted(job.read()) == sorted(A + B)


def test_a_repetition_with_other_rows_is_taken_if_nothing_is_committed(job):
    from millstream.spark import exactly_once as module

    done = job.write(0, [A, B])
    with job.settings.cluster() as cluster:
        module._agree_on_plan(Coordinators(cluster), job.at(0), module._plan_of(done), (job.topic, 0))
    job.commit(0, job.write(0, [C, B]))
    assert sorted(job.read()) == sorted(B + C)


def test_a_transaction_that_took_too_long_says_so(job):
    for timeout_ms in (1000, 10_000, 100_000):  # the first in which this machine writes them
        short = WriteSettings(job.settings.bootstrap, "c", 60.0, job.topic, "lz4", 1000, timeout_ms)
        with contextlib.suppress(MillstreamError):
            done = job.write(0, [A], short)
            break
    patience = Patience()
    follower = job.name + "-other"
    commit_tasks(job.settings, Write(follower, 0), [write_task(job.settings, Write(follower, 0), 0, batches(B))])
    while sorted(job.read()) != sorted(B):
        patience.check("the reader is held back for ever")
    with pytest.raises(Rejected, match=f"longer than kafka.transaction.timeout.ms={timeout_ms}; raise that"):
        commit_tasks(short, job.at(0), done)
    job.commit(0, job.write(0, [A]))
    assert sorted(job.read()) == sorted(A + B)


def test_a_timeout_that_the_broker_does_not_allow_is_named(job):
    long = WriteSettings(job.settings.bootstrap, "c", 60.0, job.topic, "lz4", 1000, 3_600_000)
    with pytest.raises(Rejected, match=r"transaction.max.timeout.ms"):
        job.write(0, [A], long)


def test_a_checkpoint_that_was_set_back_is_refused(job):
    for number, rows in enumerate([A, B, C]):
        job.commit(number, job.write(number, [rows]))
    with pytest.raises(Rejected, match="set back"):
        job.write(1, [B])
    assert sorted(job.read()) == sorted(A + B + C)


def test_a_named_write_is_done_once(job):
    assert not is_done(job.settings, job.at(4))
    job.commit(4, job.write(4, [A, B]), mark_done=True)
    assert is_done(job.settings, job.at(4))
    assert not is_done(job.settings, job.at(5))
    with pytest.raises(Rejected, match=r"numbers of a write\.id rise"):
        is_done(job.settings, job.at(3))
    job.commit(5, [], mark_done=True)
    assert is_done(job.settings, job.at(5))


def test_the_last_number_of_a_write_id_is_known(job):
    write = Write(named(job.name), 4)
    commit_tasks(job.settings, write, [write_task(job.settings, write, 0, batches(A))], mark_done=True)
    with job.settings.cluster() as cluster:
        assert [last_write(cluster, name) for name in (job.name, "another")] == [4, None]


def test_a_write_that_is_never_repeated_leaves_no_groups(job):
    once = Write(job.name, 0, repeatable=False)
    commit_tasks(job.settings, once, [write_task(job.settings, once, 0, batches(A))])
    assert sorted(job.read()) == sorted(A)
    admin = AdminClient({"bootstrap.servers": job.settings.bootstrap} | QUIET)
    groups = admin.list_consumer_groups().result(60)
    assert not [group for group in groups.valid if group.group_id.startswith(job.name)]
