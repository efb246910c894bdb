"""A write of several batches without Spark, for ``test_exactly_once_kills.py``: a driver and its tasks as processes.

    python once_job.py      one line for each driver: {"bootstrap": …, "topic": …, "name": …, "place": …, "batches": …}

It does what Spark does with the sink. The number of the batch is in a file that is written before the batch runs (like
``offsets``), and in one that is written after its commit (like ``commits``). Drivers are forked, because a start costs
more than what they do, and so are their tasks. The process id of a driver is written to standard output.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec
import pyarrow as pa

import millstream.spark.encode  # noqa: F401 (before the forks)
from millstream.spark.exactly_once import TaskDone, Write, WriteSettings, commit_tasks, write_task
from millstream.spark.sink import write_rows

TASKS = 3
ROWS = 40


def rows_of(batch, task):
    """The rows of a task: a key belongs to one task, and values rise."""
    numbers = [(batch * TASKS + task) * ROWS + index for index in range(ROWS)]
    return pa.RecordBatch.from_pydict(
        {
            "key": [f"k{task}-{number % 5}" for number in numbers],
            "value": [f"{number}".ljust(200) for number in numbers],
        }
    )


def attempt(settings, write, task, once, result):
    """A task in a process of its own; its result is in a file when it has ended well."""
    child = os.fork()
    if child == 0:
        halves = [rows_of(write.number, task).slice(0, ROWS // 2), rows_of(write.number, task).slice(ROWS // 2)]
        try:
            if once:
                done = write_task(settings, write, task, iter(halves))
                result.write_bytes(msgspec.msgpack.encode(done))
            else:
                write_rows(settings, iter(halves))
                result.write_bytes(b"")
            os._exit(0)
        finally:
            os._exit(1)  # whatever happened; what went well has left already
    return child


def run_batch(settings, write, once, place):
    left = list(range(TASKS))
    for _ in range(8):
        running = {}
        for task in left:
            result = place / f"{write.number}-{task}"
            result.unlink(missing_ok=True)
            running[task] = (attempt(settings, write, task, once, result), result)
        left = [task for task, (child, result) in running.items() if os.waitpid(child, 0)[1] or not result.exists()]
        if not left:
            break
    assert not left, "a task has failed too often"
    if once:
        found = [(place / f"{write.number}-{task}").read_bytes() for task in range(TASKS)]
        commit_tasks(settings, write, [msgspec.msgpack.decode(one, type=TaskDone) for one in found])


def drive(given):
    place = Path(given["place"])
    settings = WriteSettings(given["bootstrap"], "c", 60.0, given["topic"], "lz4", 1500, 60_000)
    done = place / "commits"
    batch = int(done.read_text()) if done.exists() else 0
    while batch < given["batches"]:
        (place / "offsets").write_text(str(batch + 1))
        run_batch(settings, Write(given["name"], batch), given["once"], place)
        batch += 1
        (place / "new").write_text(str(batch))
        os.replace(place / "new", done)


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # drivers are nobody's to wait for
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                drive(json.loads(line))
            finally:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
