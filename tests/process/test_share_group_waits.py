"""A test makes a share group that starts at the beginning, and waits until it has finished, or hears what lacks."""

import threading
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer, ShareConsumer

from millstream.testing import broker

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running():
    with broker() as one:
        yield one


def sent(running, topic, count):
    producer = Producer({"bootstrap.servers": running.bootstrap})
    jobs = [b"job %d" % number for number in range(count)]
    for number, job in enumerate(jobs):
        producer.produce(topic, job, partition=number % 2)
    producer.flush()
    return jobs


@contextmanager
def member(running, group, topic):
    got, stop = [], threading.Event()

    def work():
        with ShareConsumer({"bootstrap.servers": running.bootstrap, "group.id": group}) as worker:
            worker.subscribe([topic])
            while not stop.is_set():
                got.extend(job.value() for job in worker.poll(0.2) if job.error() is None)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield got
    finally:
        stop.set()
        thread.join()


def test_members_have_everything_when_the_wait_ends(running):
    topic, group = running.new_topic(3), running.new_share_group()
    jobs = sent(running, topic, 30)
    with member(running, group, topic) as one, member(running, group, topic) as other:
        running.wait_for_share_group(group)
        jobs += sent(running, topic, 20)
        running.wait_for_share_group(group)
        assert sorted(one + other) == sorted(jobs)


def test_a_group_that_does_not_come_is_named(running):
    with pytest.raises(TimeoutError, match=r"share group nobody after 0.3 s: there is no such share group"):
        running.wait_for_share_group("nobody", timeout_s=0.3)


def test_what_is_left_is_counted(running):
    topic, group = running.new_topic(2), running.new_share_group()
    with member(running, group, topic):
        sent(running, topic, 4)
        running.wait_for_share_group(group)
    sent(running, topic, 4)
    with pytest.raises(TimeoutError, match=rf"2 records of {topic}-0, 2 records of {topic}-1"):
        running.wait_for_share_group(group, timeout_s=0.3)
