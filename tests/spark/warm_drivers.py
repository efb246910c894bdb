"""Drivers of a pipeline that are killed by the dozen, on a virtual machine of Spark's that lives on.

::

    test ──► virtual machine and Python workers of Spark, started once      ◄─┐ attaches
      └────► process that has imported everything ──fork──► driver 1 ✝, driver 2 ✝, driver 3 …

A whole start of Spark takes a busy machine a minute, such a driver seconds. What a kill leaves is the same as if all
processes had ended at that moment: the virtual machine and its workers are halted, the driver is killed, and the state
directory is copied. Then they go on, so that their queries can be stopped, and the copy takes the place of what they
have written since. Files of a table that a task still finishes are in no commit.

Half of the kills strike at a random moment of a run, the others before or after a step of a batch (``STEPS``).
"""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import msgspec
import psutil

from struck_steps import edges, plant
from waits import Patience, moment

STEPS = {
    "millstream.pipeline.tables.delta.DeltaTable": ("prepare", "claim", "commit", "merge"),
    "millstream.pipeline.tables.iceberg.IcebergTable": ("prepare", "claim", "commit", "merge"),
    "millstream.pipeline.commit.TableSink": ("open", "_require_files", "_publish", "_merge"),
    "millstream.pipeline.merging_sink.MergingSink": ("open", "_commit", "_keep_deletes", "_merge"),
    "millstream.pipeline.keyed_sink.ChangelogSink": ("open", "filled"),
    "millstream.pipeline.files.FileWriter": ("close",),
    "millstream.pipeline.table_query.TableQuery": ("open", "_write", "_write_letters", "_process", "_clear"),
    "millstream.pipeline.keyed_query.KeyedQuery": ("open", "_filled", "_clear"),
    "millstream.pipeline.state.SinkState": ("pin_start", "write_progress", "restart"),
}
"""Methods of the driver before and after which it is killed."""
CALLS = 4
"""A step is struck at one of its first so many calls in a run."""
PRELOADED = [*(name.rpartition(".")[0] for name in STEPS), "pyspark.sql", "deltalake", "pyiceberg.catalog.sql"]


class Machine:
    """A virtual machine with a session of Spark, in a process that gives its address. A context manager."""

    def __init__(self, environment):
        command = [sys.executable, str(Path(__file__).with_name("warm_machine.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.address = json.loads(self._process.stdout.readline() or "null")
        assert self.address is not None, "Spark did not start"
        self._halted = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on()
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def halt(self):
        """Stop the virtual machine and all its workers where they are."""
        machine = psutil.Process(self.address["pid"])
        machine.suspend()
        self._halted = [machine, *machine.children(recursive=True)]
        for worker in self._halted[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.suspend()

    def go_on(self):
        for process in reversed(self._halted):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._halted = []

    def end_queries(self):
        """End the queries of a driver that was killed."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline(), "the session has ended"


class WarmDrivers:
    """Runs a pipeline in drivers on one machine, each of which is killed. ``killed`` says how often, by kind."""

    def __init__(self, pipeline, place, machine, environment, seed):
        other = "iceberg" if pipeline.sinks[0].iceberg is None else "delta"
        self.pipeline, self.place, self.machine = pipeline, place, machine
        self.killed = {"moment": 0, "step": 0}
        self._environment = environment
        self._random = random.Random(seed)
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(PRELOADED)
        self._run_s = 60.0  # until one has come to its end
        self._steps = [step for step in edges(STEPS) if f"tables.{other}" not in step[0]]
        self._random.shuffle(self._steps)

    def _start(self, strike=None):
        document = msgspec.json.encode(self.pipeline)
        given = (document, str(self.place), self.machine.address, self._environment, strike)
        driver = self._processes.Process(target=drive, args=given)
        driver.start()
        return driver

    def kill(self, kind):
        """Run until a kill strikes; whether it did, before the run came to its end."""
        strike = None
        if kind == "step":
            self._steps.append(self._steps.pop(0))
            strike = (*self._steps[-1], self._random.randrange(CALLS))
        awaited_s = self._random.uniform(0, self._run_s)
        begun, driver, patience = time.monotonic(), self._start(strike), Patience(600)
        status = psutil.Process(driver.pid)
        while driver.exitcode is None:
            if strike is None and time.monotonic() - begun > awaited_s:
                break
            with contextlib.suppress(psutil.NoSuchProcess):
                if status.status() == psutil.STATUS_STOPPED:
                    break
            patience.check(strike)
            moment(0.005)
        struck = driver.exitcode is None
        assert struck or driver.exitcode == 0, (self.place / "driver.log").read_text()[-3000:]
        if struck:
            self._leave(driver)
            self.killed[kind] += 1
        elif strike is None:
            self._run_s = time.monotonic() - begun
        print(f"{kind}: {strike or round(awaited_s, 3)}, {'struck' if struck else 'came to its end'}", flush=True)
        return struck

    def _leave(self, driver):
        """Kill a driver, and leave what a machine leaves on which everything ends now."""
        state, kept = self.place / ".millstream" / self.pipeline.pipeline, self.place / "kept"
        self.machine.halt()
        os.kill(driver.pid, signal.SIGKILL)
        driver.join()
        if state.exists():
            shutil.copytree(state, kept)
        self.machine.go_on()
        self.machine.end_queries()
        shutil.rmtree(state, ignore_errors=True)
        if kept.exists():
            kept.rename(state)


def drive(document, place, address, environment, strike):
    """A driver: run the pipeline once. It stops itself where it is to be struck."""
    os.environ.update(environment)
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(address["port"]), "PYSPARK_GATEWAY_SECRET": address["secret"]}
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with open(Path(place) / "driver.log", "a", buffering=1) as log:
        os.dup2(log.fileno(), 2)
        from millstream.pipeline.model import Pipeline
        from millstream.pipeline.runner import run

        try:
            attach()
            if strike is not None:
                plant(*strike, signal.SIGSTOP)
            run(msgspec.json.decode(document, type=Pipeline), place, once=True)
        except BaseException:  # noqa: BLE001 (the log has it, and the test sees the exit code)
            traceback.print_exc(file=log)
            os._exit(1)
    os._exit(0)


def attach():
    """Make the session of the machine this process's own."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    # The machine lets go of a killed driver's callbacks late, and names them to the driver of that moment.
    gateway.gateway_property.pool.next_id = os.getpid() * 10_000
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    conf = SparkConf(_jconf=context.getConf())
    SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf))
