"""History into a table that began later, and dead letters once more: each record is in one place, whatever fails."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from confluent_kafka import Producer

from waits import moment

pytest.importorskip("deltalake")

from spark_support import BRIEF_DRIVER, check_exact, delta

from millstream.errors import Rejected
from millstream.pipeline import replay as replay_module
from millstream.pipeline.backfill import prepared_backfill
from millstream.pipeline.model import Pipeline, Sink, Source, Transform, Trigger
from millstream.pipeline.replay import replay
from millstream.pipeline.runner import run
from millstream.pipeline.sink_query import SinkFailed
from millstream.pipeline.state import PipelineState
from millstream.pipeline.table_query import TableQuery

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]


def backfill(pipeline, place, **limits):
    with prepared_backfill(pipeline, str(place), **limits) as running:
        return running.run(once=True).sinks[0]


def test_history_and_present_meet_without_a_gap_and_without_an_overlap(spark, orders, tmp_path, monkeypatch):
    orders.send(1000)
    source = msgspec.structs.replace(orders.pipeline().source, start="latest")
    pipeline = orders.pipeline(source=source, state="state")
    assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 0
    orders.send(200)
    assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 200 - 8
    shutil.rmtree(tmp_path / "state")  # the table knows where its pipeline began
    process = TableQuery._process

    def failing(self, frame, number, query):
        done = process(self, frame, number, query)
        if number == 1:
            raise OSError("seeded")
        return done

    with monkeypatch.context() as patched, pytest.raises(SinkFailed, match="seeded"):
        patched.setattr(TableQuery, "_process", failing)
        backfill(pipeline, tmp_path)
    orders.send(100)
    assert backfill(pipeline, tmp_path).total_rows == 1000 - 40
    assert backfill(pipeline, tmp_path).batches == 0
    assert run(pipeline, str(tmp_path), once=True).sinks[0].total_rows == 300 - 12
    check_exact(orders, tmp_path)


def test_ranges_are_read_once_whatever_was_asked_for_and_set_back(spark, orders, tmp_path):
    import deltalake

    orders.send(1000)
    source = msgspec.structs.replace(orders.pipeline().source, start="latest")
    pipeline = orders.pipeline(source=source, state="state")
    run(pipeline, str(tmp_path), once=True)
    ranges = [("0=50", "0=150"), ("100", "200"), ("earliest", "100")]
    for number, (start, end) in enumerate(ranges):
        before = len(delta(tmp_path / "t")) + len(delta(tmp_path / "t_dead_letters")) if number else 0
        backfill(pipeline, tmp_path, start=start, end=end)
        rows = delta(tmp_path / "t") + delta(tmp_path / "t_dead_letters")
        assert len(rows) == before + {0: 100, 1: 150, 2: 150}[number]
    version = deltalake.DeltaTable(str(tmp_path / "t")).version()
    with prepared_backfill(pipeline, str(tmp_path), start="20", end="180") as again:
        summary = again.run()
    assert summary.sinks[0].batches == 0 and "from 20 to 180 is in the table already" in summary.notes[0]
    shutil.rmtree(tmp_path / "state")
    backfill(pipeline, tmp_path)
    check_exact(orders, tmp_path)
    deltalake.DeltaTable(str(tmp_path / "t")).restore(version)
    backfill(pipeline, tmp_path)
    ids = [row["id"] for row in delta(tmp_path / "t")]
    assert len(ids) == len(set(ids)) == orders.good
    state = PipelineState(str(tmp_path / "state"))
    assert state.backfill().progress()[0].ranges[orders.topic.name].keys() == {"0", "1"}


def test_a_backfill_before_the_first_run_hands_over_to_it(spark, orders, tmp_path):
    pipeline = orders.send(300).pipeline(state="state")
    assert backfill(pipeline, tmp_path).rows == orders.good
    shutil.rmtree(tmp_path / "state")
    orders.send(100)
    assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 100 - 4
    check_exact(orders, tmp_path)
    sums = msgspec.structs.replace(
        pipeline, transform=Transform(sql="SELECT who, count(*) AS n FROM source GROUP BY who")
    )
    with pytest.raises(Rejected, match=r"puts records together \(Aggregate\)"):
        backfill(msgspec.structs.replace(sums, sinks=[Sink(delta="sums")]), tmp_path)


def test_dead_letters_become_rows_after_the_schema_is_mended_each_once(spark, topic, tmp_path, monkeypatch):
    orders = topic(2)
    producer = Producer({"bootstrap.servers": orders.bootstrap, "log_level": 2})
    for number in range(60):
        value = b"{broken" if number % 20 == 0 else json.dumps({"id": number} | ({"who": "w"} if number % 3 else {}))
        producer.produce(orders.name, value, str(number))
    assert producer.flush(60) == 0

    def declared(schema):
        source = Source(topic=orders.name, format="json", schema=schema)
        query = Transform(sql="SELECT id, upper(who) AS who, _offset AS at FROM source")
        return Pipeline(pipeline="p", brokers=orders.bootstrap, source=source, sinks=[Sink(delta="t")], transform=query)

    strict, mended = declared("id bigint not null, who string not null"), declared("id bigint not null, who string")
    first = run(strict, str(tmp_path), once=True).sinks[0]
    assert (first.rows, first.rejected) == (38, 22)
    (nothing,) = replay(strict, str(tmp_path))
    assert (nothing.letters, nothing.replayed, sum(nothing.reasons.values())) == (22, 0, 22)

    def failing(*_):
        raise OSError("seeded")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="seeded"):
        patched.setattr(replay_module, "remove_dead_letters", failing)
        replay(mended, str(tmp_path))
    (done,) = replay(mended, str(tmp_path))
    assert (done.letters, done.replayed) == (3, 0)  # the rest had come before the failure
    rows = delta(tmp_path / "t")
    assert sorted(row["id"] for row in rows) == [number for number in range(60) if number % 20]
    assert {row["who"] for row in rows if row["id"] % 3 == 0} == {None}
    assert {row["value"] for row in delta(tmp_path / "t_dead_letters")} == {b"{broken"}
    assert run(mended, str(tmp_path), once=True).sinks[0].rows == 0
    sums = msgspec.structs.replace(mended, transform=Transform(sql="SELECT count(*) AS n FROM source"))
    with pytest.raises(Rejected, match=r"puts records together \(Aggregate\)"):
        replay(sums, str(tmp_path))


def commits(place):
    log = place / "t" / "_delta_log"
    return len(list(log.glob("*.json"))) if log.is_dir() else 0


@pytest.mark.timeout(3600)
def test_history_and_present_are_exact_when_both_are_killed_around_the_hand_over(orders, tmp_path):
    """``MILLSTREAM_KILLS`` times a backfill, a run that catches up and goes on live, or both at once are killed."""
    kills, seed = int(os.environ.get("MILLSTREAM_KILLS", "9")), os.environ.get("MILLSTREAM_SEED", "7")
    chance = random.Random(seed)
    orders.send(4000)
    source = msgspec.structs.replace(orders.pipeline().source, start="latest", max_records=100)
    often = Trigger(every="200ms")
    pipeline = orders.pipeline(source=source, state="state", trigger=often, spark=BRIEF_DRIVER)
    document = msgspec.to_builtins(pipeline)
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    command = [sys.executable, "-m", "millstream.cli", "pipeline"]
    killed = 0

    def start(verb):
        with open(tmp_path / "log", "ab") as log:
            given = [*command, verb, str(tmp_path / "p.yaml")]
            return subprocess.Popen(given, start_new_session=True, stdout=log, stderr=log)

    def until_killed(verbs, awaited):
        """Runs these until the table has more commits than awaited; returns how many were killed."""
        before, drivers = commits(tmp_path), [start(verb) for verb in verbs]
        deadline = time.monotonic() + 300
        try:
            while commits(tmp_path) <= before + awaited and time.monotonic() < deadline:
                if all(driver.poll() is not None for driver in drivers):
                    break
                if "run" in verbs and commits(tmp_path) > before:
                    orders.send(5)  # something for the live part
                moment(0.01)
            moment(chance.uniform(0, 0.5))
            return sum(driver.poll() is None for driver in drivers)
        finally:
            for driver in drivers:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(60)

    for number in range(kills):
        orders.send(100)
        verbs = (["backfill"], ["run"], ["backfill", "run"])[number % 3]
        found = until_killed(verbs, number // 3 % 3)  # the first commit, or one or two later: a live one by then
        killed += found
        print(f"seed {seed}, kill {number}: {found} of {' and '.join(verbs)} killed at {commits(tmp_path)} commits")
    assert killed >= kills // 2, (tmp_path / "log").read_text()[-3000:]
    for verb in (["run", "--once"], ["backfill"]):
        with open(tmp_path / "log", "ab") as log:
            subprocess.run([*command, *verb, str(tmp_path / "p.yaml")], stdout=log, stderr=log, timeout=900, check=True)
    check_exact(orders, tmp_path)
