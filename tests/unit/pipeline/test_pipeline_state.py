"""The state directory: one runner at a time, and a stop that waits for it."""

import os
import subprocess
import sys

import pytest

from millstream.errors import Rejected, Unavailable
from millstream.pipeline.state import PipelineState, SinkState

RUNNER = """
import signal, sys
from millstream.pipeline.state import PipelineState
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with PipelineState(sys.argv[1]).running():
    print("runs", flush=True)
    signal.sigwait({signal.SIGTERM})
"""


def test_a_second_runner_is_refused_and_a_stop_waits_for_the_first(tmp_path):
    state = PipelineState(str(tmp_path / "state"))
    assert (state.runner(), state.stop(1)) == (None, False)
    with subprocess.Popen([sys.executable, "-c", RUNNER, state.directory], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "runs\n"
        assert state.runner() == other.pid
        with pytest.raises(Unavailable, match=f"process {other.pid}"), state.running():
            pass
        assert state.stop(30) is True
        assert other.wait(60) == 0
    with state.running():
        assert state.runner() == os.getpid()
    assert state.runner() is None


def test_a_start_is_pinned_whole_and_a_damaged_checkpoint_is_named(tmp_path):
    sink = SinkState(str(tmp_path / "sink"))
    assert (sink.start(), sink.query_id(), sink.finished_batch(), sink.progress()) == (None, None, None, None)
    sink.pin_start({"t": {"0": 7}}, {"t": "a"})
    assert (sink.start(), sink.start_topics()) == ({"t": {"0": 7}}, {"t": "a"})
    os.makedirs(f"{sink.checkpoint}/commits")
    for name in ("0", "9", "10", ".10.crc"):
        open(f"{sink.checkpoint}/commits/{name}", "w").close()
    assert sink.finished_batch() == 10
    with open(f"{sink.checkpoint}/metadata", "w") as file:
        file.write("{")
    with pytest.raises(Rejected, match="name no query"):
        sink.query_id()
    with pytest.raises(Rejected, match="batch 11 ends"):
        sink.offsets(11)


def test_the_first_of_two_beginnings_holds_for_both(tmp_path):
    run, backfill = SinkState(str(tmp_path / "sink")), SinkState(str(tmp_path / "sink"))
    assert (run.start(), backfill.start()) == (None, None)  # both decide now
    assert backfill.pin_start({"t": {"0": 7}}, {"t": "a"}) == {"t": {"0": 7}}
    assert run.pin_start({"t": {"0": 9}}, {"t": "a"}) == {"t": {"0": 7}}
    assert run.start() == backfill.start() == {"t": {"0": 7}}
    assert run.pin_start({"t": {"0": 12}}, {"t": "a"}, replace=True) == run.start() == {"t": {"0": 12}}
    assert os.listdir(tmp_path / "sink") == ["start.json"]
