"""A query that lost a Python worker is started again after a pause; any other failure ends the run."""

import subprocess
import sys
import time

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from millstream.cli.failure import CommandFailed
from millstream.cli.spark_work import plain_errors
from millstream.errors import Unavailable
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.runner import Run
from millstream.pipeline.sink_query import NoWatch, SinkFailed, SinkQuery, SinkRun
from millstream.pipeline.start import find_start, open_logs
from millstream.pipeline.state import PipelineState, SinkState
from millstream.spark.logs import FoundOffset, Logs, SourcePartition
from millstream.spark.workers import patiently

PIPELINE = Pipeline(pipeline="p", source=Source(topic="orders"), sinks=[Sink(delta="t")])
LATE = "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
WRONG = "[STREAM_FAILED] Query [id = 1] terminated with exception: x\nmillstream.errors.Rejected: a record is wrong"


class ScriptedSink(SinkQuery):
    """Fails with each of the texts in turn, then ends."""

    def __init__(self, directory, *texts):
        state = SinkState(f"{directory}/s")
        super().__init__(SinkRun(pipeline=PIPELINE, index=0, directory=directory, state=state, run_id="r"), NoWatch())
        self.texts, self.starts = list(texts), 0

    def start(self, every_s):
        self.starts += 1

    def wait(self, timeout_s):
        if self.texts:
            raise self._failed(StreamingQueryException(self.texts.pop(0)))
        return False


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    def make(*texts):
        running = Run(PIPELINE, str(tmp_path), PipelineState(str(tmp_path / "state")), NoWatch())
        running.sinks.append(ScriptedSink(str(tmp_path), *texts))
        return running, running.sinks[0], pauses

    return make


def test_a_worker_that_comes_up_late_costs_a_pause_and_a_restart(run_of):
    running, sink, pauses = run_of(LATE, LATE)
    running.run(once=True)
    assert sink.starts == 3
    assert pauses == [1, 2]


def test_restarts_end_when_none_of_them_helps(run_of):
    running, sink, pauses = run_of(*[LATE] * 6)
    with pytest.raises(SinkFailed, match="failed to connect back"):
        running.run(once=True)
    assert (sink.starts, len(pauses)) == (6, 5)


def test_a_failure_of_another_kind_ends_the_run_with_its_reason(run_of):
    running, sink, pauses = run_of(WRONG)
    with pytest.raises(SinkFailed, match="delta-t: a record is wrong"):
        running.run(once=True)
    assert (sink.starts, pauses) == (1, [])


def test_a_call_that_lost_its_worker_is_made_again_and_in_the_end_given_up(monkeypatch):
    pauses, answers = [], [LATE, LATE, "frame"]
    monkeypatch.setattr(time, "sleep", pauses.append)

    def load():
        answer = answers.pop(0)
        if answer != "frame":
            raise StreamingQueryException(answer)
        return answer

    assert patiently(load, "reading") == "frame"
    assert pauses == [1, 2]
    answers[:] = [WRONG]
    with pytest.raises(StreamingQueryException, match="a record is wrong"):
        patiently(load, "reading")
    answers[:] = [LATE] * 6
    with pytest.raises(Unavailable, match="reading: Spark's Python workers do not start within the ten seconds"):
        patiently(load, "reading")
    assert not answers


def test_an_error_of_sparks_own_is_a_sentence_and_one_of_ours_a_traceback():
    with pytest.raises(CommandFailed, match=r"^Spark failed: \[STREAM_FAILED\] Query"), plain_errors():
        raise StreamingQueryException(f"\n{WRONG.replace('millstream', 'other')}")
    with pytest.raises(CommandFailed, match=r"^a record is wrong$"), plain_errors():
        raise StreamingQueryException(f"\n{WRONG}")
    java = "An error occurred while calling None.org.X.\n: org.apache.spark.SparkException: it is gone\n\tat a.b.c"
    with pytest.raises(CommandFailed, match=r"^Spark failed: SparkException: it is gone$"), plain_errors():
        raise StreamingQueryException(java)
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError


def test_the_package_gives_what_the_docs_import_even_after_its_modules_were_imported():
    code = "import millstream.pipeline.{}; from millstream.pipeline import Pipeline, Sink, Source, load, run; "
    check = "assert run.__name__ == 'run' and load.__name__ == 'load' and callable(run) and callable(load)"
    for module in ("model", "runner", "document"):
        subprocess.run([sys.executable, "-c", code.format(module) + check], check=True)


def test_a_start_time_after_all_records_of_a_partition_is_its_end(tmp_path, monkeypatch):
    places = [SourcePartition("orders", "id", number, 1) for number in range(2)]
    monkeypatch.setattr(Logs, "source_partitions", lambda _: places)
    monkeypatch.setattr(Logs, "latest", lambda _, asked: {place.key: FoundOffset(7, 0, 0) for place in asked})
    monkeypatch.setattr(Logs, "_ask", lambda _, times: {key: FoundOffset(5 - 6 * key[1], 0, 0) for key in times})
    pipeline = msgspec.structs.replace(PIPELINE, source=Source(topic="orders", start="2020-01-01T00:00:00Z"))
    logs = open_logs(pipeline)
    assert find_start(pipeline, SinkState(str(tmp_path)), None, logs) == {"orders": {"0": 5, "1": 7}}
    logs.close()
