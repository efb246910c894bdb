"""Appends that wait for memory: who waits how long."""

from types import SimpleNamespace

import pytest
from append_support import batch, make

from millstream.model.error_code import ErrorCode
from millstream.partition.append.admission import OUT_OF_MEMORY, RETRY_US, WAIT_US, Admission
from millstream.partition.append.batch import Batch
from sim.engine.local_storage import LocalReactor


def test_a_producer_is_refused_in_time_though_the_brokers_own_appends_find_no_memory():
    reactor = LocalReactor(1_700_000_000_000)
    admission = Admission(reactor, SimpleNamespace(accepts_writes=True, stopping=False))
    partition, data, outcomes, own = make(), batch(), [], []

    def attempt():
        own.append(reactor.now_us())
        return len(own) > 2 * WAIT_US // RETRY_US

    admission.add_own(attempt)
    admission.submit(
        Batch(partition, (memoryview(data),), len(data)), lambda outcome, refusal: outcomes.append(outcome)
    )
    begun = reactor.now_us()
    while not outcomes and reactor.sleep(begun + 2 * WAIT_US):
        while reactor.turn():
            pass
    assert outcomes == [OUT_OF_MEMORY] and OUT_OF_MEMORY.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert reactor.now_us() - begun <= WAIT_US + 2 * RETRY_US
    assert not partition.log.batches


@pytest.mark.parametrize(
    "storage", [{"accepts_writes": False, "stopping": False}, {"accepts_writes": True, "stopping": True}]
)
def test_a_full_disk_and_a_shard_that_stops_refuse_at_once_though_the_brokers_own_appends_wait(storage):
    reactor = LocalReactor(1_700_000_000_000)
    admission = Admission(reactor, SimpleNamespace(**storage))
    partition, data, outcomes = make(), batch(), []
    admission.add_own(lambda: False)
    admission.submit(
        Batch(partition, (memoryview(data),), len(data)), lambda outcome, refusal: outcomes.append(outcome.error_code)
    )
    reactor.sleep(reactor.now_us() + RETRY_US)
    assert outcomes == [ErrorCode.KAFKA_STORAGE_ERROR]
