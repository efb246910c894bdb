"""Records of many partitions without a group: positions, faults that pass, transactions, damage."""

import pytest
from fake_kafka import HANG_UP, FakeKafka

from millstream.client import EARLIEST, LATEST, Cluster
from millstream.client.record_reader import RecordReader
from millstream.errors import Corruption, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.records import ABORT, COMMIT, build_batch, control_record


def batch(*values, **how):
    return build_batch([(None, value, (), 100 + i) for i, value in enumerate(values)], **how)


def transactional(producer_id, *values):
    return batch(*values, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def marker(producer_id, kind):
    return build_batch(
        [control_record(kind, 0, 200)], producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )


@pytest.fixture
def kafka():
    with FakeKafka({"t": 3, "u": 1}) as fake:
        yield fake


@pytest.fixture
def cluster(kafka):
    with Cluster(kafka.bootstrap, timeout_s=60) as opened:
        yield opened


def values(reader):
    """The values of one round, by partition."""
    found = {}
    for target, record in reader.read_round():
        found.setdefault(target, []).append(record.value)
    return found


def test_one_request_reads_all_partitions_of_a_leader(cluster, kafka):
    for partition in range(3):
        kafka.log("t", partition).append(batch(b"a%d" % partition, b"b%d" % partition))
    with RecordReader(cluster, {("t", partition): EARLIEST for partition in range(3)}) as reader:
        assert values(reader) == {("t", n): [b"a%d" % n, b"b%d" % n] for n in range(3)}
        assert kafka.requests["Fetch"] == 1
        assert set(reader.positions.items()) == {(("t", n), 2) for n in range(3)}
        assert reader.at_end == {("t", 0), ("t", 1), ("t", 2)}
        kafka.log("t", 1).append(batch(b"c"))
        assert values(reader) == {("t", 1): [b"c"]}
    assert kafka.requests["FindCoordinator"] == 0


def test_it_begins_at_an_offset_in_the_middle_of_a_batch_or_at_the_end(cluster, kafka):
    kafka.log("t").append(batch(b"a", b"b", b"c"))
    kafka.log("u").append(batch(b"x"))
    with RecordReader(cluster, {("t", 0): 1, ("u", 0): LATEST}) as reader:
        assert values(reader) == {("t", 0): [b"b", b"c"]}
        kafka.log("u").append(batch(b"y"))
        assert values(reader) == {("u", 0): [b"y"]}


def test_a_partition_with_more_than_a_response_is_not_at_its_end(cluster, kafka):
    for _ in range(3):
        kafka.log("t").append(batch(bytes(700_000)))
    with RecordReader(cluster, {("t", 0): 0}) as reader:
        assert [len(values(reader)[("t", 0)]), reader.at_end] == [1, set()]
        assert [len(values(reader)[("t", 0)]), reader.at_end] == [1, set()]
        assert [len(values(reader)[("t", 0)]), reader.at_end] == [1, {("t", 0)}]


@pytest.mark.parametrize(
    ("committed", "expected"),
    [(True, [b"before", b"kept", b"own", b"again"]), (False, [b"before", b"kept", b"gone", b"own", b"again"])],
)
def test_aborted_transactions_are_left_out_when_only_committed_ones_are_read(cluster, kafka, committed, expected):
    log = kafka.log("t")
    for one in (
        batch(b"before"),
        transactional(7, b"kept"),
        transactional(8, b"gone"),
        marker(7, COMMIT),
        marker(8, ABORT),
        batch(b"own"),
        transactional(8, b"again"),
        marker(8, COMMIT),
    ):
        log.append(one)
    log.aborted = [(8, 2)]
    with RecordReader(cluster, {("t", 0): 0}, read_committed=committed) as reader:
        assert values(reader) == {("t", 0): expected}
        assert reader.positions == {("t", 0): 8}


@pytest.mark.parametrize("fault", [HANG_UP, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_fault_that_passes_is_reported_and_the_next_round_goes_on(cluster, kafka, fault):
    kafka.log("t").append(batch(b"a"))
    with RecordReader(cluster, {("t", 0): 0}) as reader:
        kafka.faults["Fetch"] = [fault]
        assert values(reader) == {}
        assert reader.failure is not None
        reader.refresh()
        assert values(reader) == {("t", 0): [b"a"]}
        assert reader.failure is None


def test_a_broker_that_is_gone_is_reported_without_waiting(kafka):
    kafka.log("t").append(batch(b"a"))
    with Cluster(kafka.bootstrap, timeout_s=60) as cluster, RecordReader(cluster, {("t", 0): 0}) as reader:
        assert values(reader) == {("t", 0): [b"a"]}
        kafka.stop()
        assert values(reader) == {}
        with pytest.raises(Unavailable):
            reader.refresh()


def test_records_that_were_deleted_meanwhile_are_skipped(cluster, kafka):
    kafka.log("t").append(batch(b"a", b"b"))
    kafka.log("t").append(batch(b"c"))
    kafka.log("t").trim(2)
    with RecordReader(cluster, {("t", 0): 0}) as reader:
        assert values(reader) == {}
        assert values(reader) == {("t", 0): [b"c"]}


def test_a_topic_that_was_deleted_is_an_error(cluster, kafka):
    kafka.log("u").append(batch(b"a"))
    with RecordReader(cluster, {("u", 0): 0}) as reader:
        assert values(reader) == {("u", 0): [b"a"]}
        del kafka.topics["u"]
        assert values(reader) == {}
        with pytest.raises(Rejected, match="topic u does not exist") as refused:
            reader.refresh()
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_refusal_that_does_not_pass_is_raised(cluster, kafka):
    with RecordReader(cluster, {("t", 0): 0}) as reader:
        kafka.faults["Fetch"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(Rejected, match="TOPIC_AUTHORIZATION_FAILED"):
            values(reader)


def test_damaged_bytes_are_never_given(cluster, kafka):
    kafka.log("t").append(batch(b"a"))
    kafka.log("t").append(batch(b"damaged"))
    bent = bytearray(kafka.log("t").batches[1])
    bent[-3] ^= 1
    kafka.log("t").batches[1] = bytes(bent)
    with RecordReader(cluster, {("t", 0): 0}) as reader:
        found = []
        with pytest.raises(Corruption, match="t-0 at offset 1: checksum"):
            found.extend(record.value for _, record in reader.read_round())
        assert found == [b"a"]
