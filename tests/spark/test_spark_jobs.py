"""``millstream job`` on a real broker."""

import collections
import json
import os
import signal
import subprocess
import sys

import pytest

from waits import Patience, moment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(int(os.environ.get("MILLSTREAM_KILLS", "30")) < 10, reason="for MILLSTREAM_KILLS of 10 or more"),
]


def rows_of(spark, topic):
    options = topic.options(includeHeaders="true")
    return spark.read.format("millstream").options(**options).load().collect()


def test_a_topic_is_repartitioned_once_through_a_kill(spark, topic, tmp_path):
    source, target = topic(2), topic(5)
    source.produce(4000, headers=[("h", b"1")])
    command = [sys.executable, "-m", "millstream.cli", "job", "repartition", source.name, target.name]
    command += ["--bootstrap", source.bootstrap, "--state", str(tmp_path), "--id", "j", "--batch", "64KiB", "--json"]
    commits = tmp_path / "j" / "checkpoint" / "commits"
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as run:
        patience = Patience()
        while not (commits.is_dir() and len(list(commits.glob("[0-9]*"))) >= 2):
            assert run.poll() is None
            patience.check("nothing is committed")
            moment(0.01)
        os.killpg(run.pid, signal.SIGKILL)
    source.produce(100)  # after the job began, and so no part of it
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    done = json.loads(again.stdout)
    assert (done["offsets"], 0 < done["rows"] < 4000) == (4000, True)
    before = {row.value: row for row in rows_of(spark, source)}
    copied = rows_of(spark, target)
    assert sorted(row.value for row in copied) == sorted(source.sent[:4000])
    last = collections.defaultdict(lambda: -1)
    homes = collections.defaultdict(set)
    for row in sorted(copied, key=lambda row: (row.partition, row.offset)):
        was = before[row.value]
        assert (row.key, row.timestamp, row.headers) == (was.key, was.timestamp, was.headers)
        assert was.offset > last[row.key]
        last[row.key] = was.offset
        homes[row.key].add(row.partition)
    assert max(map(len, homes.values())) == 1
    assert {row.partition for row in copied} == set(range(5))
    other = [*command[:5], target.name, source.name, *command[7:]]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "give this one another --id" in refused.stderr
