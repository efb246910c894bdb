"""Bits that flip in what was durable: told by topic, partition, offset and file, in the log, in ``/metrics`` and by
``millstream log verify``; everything else is served.
"""

import json
import random
import re

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from crash_clients import QUIET
from fault_support import PARTITIONS, TOPIC, Scene, batches, fetch_error, flip, segments

from millstream.testing import BrokerFailed
from millstream.testing.stem import run_command

pytestmark = pytest.mark.process


def verify(data_dir, *words, code=1):
    done = run_command("log", "verify", "--data", data_dir, "--json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "corrupt"]


def read(broker, partition, start=0):
    """(offsets that a consumer is given up to the end or the first error, that error or None)."""
    consumer = Consumer({**QUIET, "bootstrap.servers": broker.bootstrap, "group.id": "reads"})
    end = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), 20)[1]
    consumer.assign([TopicPartition(TOPIC, partition, start)])
    got, error = [], None
    while error is None and (not got or got[-1] < end - 1):
        for message in consumer.consume(1000, 5):
            if message.error() is None:
                got.append(message.offset())
            else:
                error = message.error()
    consumer.close()
    return got, error


@pytest.fixture
def scene(tmp_path):
    """A broker with records in sealed segments, and with nothing of them in memory."""
    with Scene(tmp_path, random.Random(1)) as made:
        made.begin(1500)
        made.workload.give_up()
        assert made.broker.stop() == 0
        yield made


@pytest.mark.slow
def test_damage_that_a_running_broker_meets_is_told_everywhere_and_the_rest_is_served(scene):
    broker = scene.broker
    broker.start()
    path = next(one for one in segments(broker.data_dir, TOPIC, 1) if len(batches(one)) > 2)
    _, (position, size, base), (_, _, following), *_ = batches(path)
    flip(path, position + size - 3)
    got, error = read(broker, 1)
    assert got == list(range(base)), "what stands before it is served"
    assert error.code() == KafkaError.INVALID_MSG
    assert fetch_error(broker, TOPIC, 1, base) == "CORRUPT_MESSAGE"
    assert read(broker, 1, following) == (list(range(following, read(broker, 1, following)[0][-1] + 1)), None)
    for partition in {*range(PARTITIONS)} - {1}:
        assert read(broker, partition)[1] is None
    (line,) = [line for line in scene.lines("ERROR") if f"byte {position}" in line]
    assert f"{TOPIC}/1] corrupt: {path}: the batch at byte {position}, offset {base}, does not match" in line
    assert scene.metric("millstream_storage_faults_total", kind="corruption") >= 1
    where = {"topic": TOPIC, "partition": "1", "offset": str(base), "file": str(path)}
    assert scene.metric("millstream_log_damage", **where) == 1
    (found,) = verify(broker.data_dir, "--running")
    assert (found["log"], found["byte"], found["offset"]) == (f"{TOPIC}/1", position, base)
    assert str(path).endswith(found["file"])
    assert broker.stop() == 0


@pytest.mark.slow
def test_damage_found_at_a_start_fences_its_log_by_name_and_serves_the_others(scene):
    broker = scene.broker
    path = segments(broker.data_dir, TOPIC, 2)[-1]
    with path.open("r+b") as file:  # bytes that were durable are missing
        file.truncate(path.stat().st_size - 10)
    found = verify(broker.data_dir)
    assert {one["log"] for one in found} == {f"{TOPIC}/2"}
    assert any(str(path).endswith(one["file"]) and "were durable" in one["what"] for one in found)
    broker.start()
    assert any(f"{TOPIC}/2] not served: {path} has" in line for line in scene.lines("ERROR"))
    assert scene.metric("millstream_log_faulty") == 1
    assert scene.metric("millstream_log_damage", topic=TOPIC, partition="2", file=str(path.parent)) == 1
    assert fetch_error(broker, TOPIC, 2, 0) == "KAFKA_STORAGE_ERROR"
    for partition in {*range(PARTITIONS)} - {2}:
        assert read(broker, partition)[1] is None
    assert broker.stop() == 0


@pytest.mark.slow
def test_a_damaged_index_is_told_by_verify_and_mended_by_the_next_start(scene):
    broker = scene.broker
    path = segments(broker.data_dir, TOPIC, 0)[0].with_suffix(".index")
    flip(path, path.stat().st_size // 2)
    done = run_command("log", "verify", "--data", broker.data_dir, "--json")
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert [(one["severity"], one["log"]) for one in findings if one["file"].endswith(path.name)] == [
        ("mended", f"{TOPIC}/0")
    ]
    broker.start()
    broker.kill()  # not an orderly stop: the next start reads all indexes
    broker.start()
    for partition in range(PARTITIONS):
        assert read(broker, partition)[1] is None
    assert scene.said(f"{path} was missing, damaged or short and is completed from the segment", "WARN")
    assert scene.metric("millstream_recovery_repairs_total", kind="index_rebuilt") >= 1
    assert broker.stop() == 0
    assert verify(broker.data_dir, code=0) == []


@pytest.mark.slow
def test_damage_in_the_write_ahead_log_is_mended_from_the_segments_or_told_by_name(tmp_path):
    quiet = {"checkpoint.ms": 60_000, "checkpoint.bytes": "32MiB", "wal.bytes": "64MiB", "wal.file.bytes": "8MiB"}
    with Scene(tmp_path, random.Random(2), settings={**quiet, "log.roll.ms": 60_000}) as scene:
        scene.begin()
        broker = scene.broker
        scene.workload.wait_progress(1500)
        scene.workload.give_up()
        broker.kill()
        (path,) = (broker.data_dir / "wal" / "0").glob("*0.wal")
        # Of a partition of which nothing is in a segment yet: that would mend it.
        logs = (broker.data_dir / "topics").glob("*/*/*.log")
        homes = [log.parent for log in logs if (log.parents[1] / "topic").read_text().strip() == TOPIC]
        bare = {*range(PARTITIONS)} - {int(home.name) for home in homes}
        values = [one for one in re.finditer(rb"p0-(\d{6})", path.read_bytes()) if int(one[1]) % PARTITIONS in bare]
        value = values[len(values) // 2]
        flip(path, value.start())
        damaged = int(value[1]) % PARTITIONS
        found = verify(broker.data_dir)
        assert [one["log"] for one in found] == [f"{TOPIC}/{damaged}"]
        assert found[0]["file"].endswith(path.name)
        broker.start()
        assert any(f"{TOPIC}/{damaged}" in line and path.name in line for line in scene.lines("ERROR"))
        assert scene.metric("millstream_storage_faults_total", kind="corruption") >= 1
        assert scene.metric("millstream_log_damage", topic=TOPIC, partition=str(damaged)) == 1
        assert fetch_error(broker, TOPIC, damaged, 0) == "KAFKA_STORAGE_ERROR"
        for partition in {*range(PARTITIONS)} - {damaged}:
            assert read(broker, partition)[1] is None
        assert broker.stop() == 0
        (quarantined,) = (broker.data_dir / "topics").glob("*/*/*.quarantined")
        dump = run_command("log", "dump", quarantined, "--records", "--json")
        assert dump.returncode == 0, dump.stderr
        kept = [one["value"] for one in map(json.loads, dump.stdout.splitlines()) if one["kind"] == "record"]
        behind = [int(one[3:9]) for one in kept if one.startswith("p0-")]
        assert behind == sorted(behind)
        assert behind[0] > int(value[1])


@pytest.mark.slow
def test_a_damaged_state_of_the_write_ahead_log_is_mended_and_two_end_the_start(scene):
    broker = scene.broker
    broker.start()
    broker.kill()
    files = [broker.data_dir / "wal" / "0" / name for name in ("state", "state.copy")]
    flip(files[0], 20)
    broker.start()
    assert any(f"repaired: {files[0]} is damaged" in line for line in scene.lines("WARN"))
    assert scene.metric("millstream_recovery_repairs_total", kind="other") >= 1
    for partition in range(PARTITIONS):
        assert read(broker, partition)[1] is None
    assert broker.stop() == 0
    assert verify(broker.data_dir, code=0) == []
    for path in files:
        flip(path, 20)
    (found,) = verify(broker.data_dir)
    assert found["file"].endswith("wal/0")
    with pytest.raises(BrokerFailed, match=r"nothing says which frames in \S+/wal/0 are in the segments already"):
        broker.start()
    files[0].parent.rename(files[0].parent.with_suffix(".aside"))
    broker.start()
    for partition in range(PARTITIONS):
        assert read(broker, partition)[1] is None
    assert broker.stop() == 0
