"""Uploads run at idle priority in a process apart, continue in another one that is not idle, and fill the cache."""

import contextlib
import os
import signal

import pytest
from bench import processes
from tiering import AT_ONCE, RECORDS, archived, consume, create, expected, metric, only_the_tail_is_local, produce

from millstream.testing.process import Broker
from waits import until

pytestmark = pytest.mark.process


def upload_process(broker):
    """The pid of the upload process; 0 if there is none."""
    return next((pid for pid in processes.tree(broker.pid) if processes.comm_of(pid).startswith("ms upload")), 0)


def idle_upload_process(broker):
    """Its pid if all of its threads are idle; else 0."""
    pid = upload_process(broker)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it was replaced
        threads = os.listdir(f"/proc/{pid}/task")
        return pid if {os.sched_getscheduler(int(thread)) for thread in threads} == {os.SCHED_IDLE} else 0
    return 0


def test_uploads_are_idle_and_a_process_that_gets_nothing_done_is_replaced_by_one_that_is_not():
    with Broker(settings=AT_ONCE, shards=1) as broker:
        create(broker, "t", segment_upload_max_ms=1000)
        produce(broker, "t", range(RECORDS))
        idle = until(lambda: idle_upload_process(broker), "no upload process is idle")
        until(lambda: archived(broker), "nothing was archived")
        with contextlib.suppress(ProcessLookupError):  # this machine is never idle
            os.kill(idle, signal.SIGSTOP)
        produce(broker, "t", range(RECORDS, 2 * RECORDS))
        until(lambda: upload_process(broker) not in (0, idle), "it was not replaced")
        until(lambda: only_the_tail_is_local(broker), "the rest was not archived")
        until(lambda: not metric(broker, "millstream_archive_uploads_behind"), "it stays hurried")
        until(lambda: idle_upload_process(broker), "it is not idle again")
        assert consume(broker, "t") == expected(range(2 * RECORDS))
        assert metric(broker, "millstream_archive_upload_failures_total") == 0


@pytest.mark.parametrize("kind", ["memory", "nvme"])
def test_uploads_fill_the_warm_cache_of_the_archive_process(tmp_path, kind):
    cache = {
        "cache.type": kind,
        "cache.fill": "both",
        "cache.path": str(tmp_path / "cache"),
        "cache.min.free.percent": 0,
    }
    with Broker(settings={**AT_ONCE, **cache}, shards=1) as broker:
        create(broker, "t")
        produce(broker, "t", range(RECORDS))
        until(lambda: only_the_tail_is_local(broker), "nothing was archived")
        until(lambda: metric(broker, "millstream_hot_tier_fills_total") > 0, "the cache is empty")
        assert consume(broker, "t") == expected(range(RECORDS))


def test_an_upload_process_that_dies_takes_the_broker_down_and_a_restart_continues():
    with Broker(settings=AT_ONCE, shards=1) as broker:
        create(broker, "t")
        produce(broker, "t", range(RECORDS))
        uploading = until(lambda: upload_process(broker), "nothing is uploaded")
        pids = processes.tree(broker.pid)
        os.kill(uploading, signal.SIGSEGV)
        assert broker.wait(60) != 0
        assert processes.wait_gone(pids) == []
        broker.start()
        until(lambda: only_the_tail_is_local(broker), "the rest was not archived")
        assert consume(broker, "t") == expected(range(RECORDS))
