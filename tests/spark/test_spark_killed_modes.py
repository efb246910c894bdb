"""Tables of every mode are exact after the driver that fills them was killed at any moment.

One pipeline fills four tables of one kind from one topic: rows are appended, appended in partitions, kept by key, and
kept as changes. Each kill strikes all four. ``MILLSTREAM_KILLS`` says how often, ``MILLSTREAM_SEED`` when. The drivers
share a virtual machine that stays warm (``warm_drivers``), but for the last one, which is the command.
"""

import contextlib
import json
import os
import subprocess
import sys

import msgspec
import pytest
from keyed_records import Customers, check_every_mode, sinks_of_every_mode
from spark_support import BRIEF_DRIVER
from tests import buckets
from warm_drivers import Machine, WarmDrivers

from waits import Patience

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "10"))
SEED = os.environ.get("MILLSTREAM_SEED", "7")
BATCH = 80


@pytest.mark.parametrize("where", ["delta", "iceberg", "s3"])
def test_a_driver_that_is_killed_anywhere_leaves_exact_tables_of_every_mode(orders, topic, tmp_path, where):
    with contextlib.ExitStack() as held_open:
        environment = {}
        if where == "s3":
            environment = buckets.environment(held_open.enter_context(buckets.moto()), tmp_path)
            environment["HOME"] = os.environ["HOME"]  # where the classes of Spark are stored
            patched = held_open.enter_context(pytest.MonkeyPatch.context())
            for name, value in environment.items():
                patched.setenv(name, value)
        customers, by_mode = Customers(topic).send(3 * BATCH, keys=300), sinks_of_every_mode(where)
        source = customers.source(max_records=BATCH)
        pipeline = orders.pipeline(*by_mode.values(), source=source, spark=BRIEF_DRIVER)
        with Machine(environment) as machine:
            drivers = WarmDrivers(pipeline, tmp_path, machine, environment, SEED)
            for kind in ("moment", "step"):
                patience = Patience(3600)
                while drivers.killed[kind] < (KILLS + 1) // 2:
                    drivers.kill(kind)
                    customers.send(2 * BATCH, keys=300)
                    patience.check(drivers.killed)
        (tmp_path / "p.yaml").write_text(json.dumps(msgspec.to_builtins(pipeline)))
        command = [sys.executable, "-m", "millstream.cli", "pipeline", "run", "--once", str(tmp_path / "p.yaml")]
        # Where the machine is too busy, Spark's Python workers come up too late, and a run ends.
        assert any(subprocess.run(command, check=False).returncode == 0 for _ in range(5))
        check_every_mode(customers, by_mode, tmp_path)
