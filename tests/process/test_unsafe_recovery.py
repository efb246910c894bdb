"""Two of three brokers are lost for good: the survivor goes on with all that it has, and the lost ones stay out."""

import json

import pytest
from cluster_support import Unordered, all_in_sync, create, partitions, read, send
from growing_support import status

from millstream.testing import cluster
from millstream.testing.process import BrokerFailed
from millstream.testing.stem import run_command
from waits import until

pytestmark = pytest.mark.process


def recover(survivor, *words, code=0):
    """What the command prints, and what it says beside that."""
    done = run_command("cluster", "recover", "--unsafe", "--survivor", survivor, *words)
    assert code in (None, done.returncode), done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_survivor_of_three_serves_what_it_has_and_a_lost_broker_that_returns_is_refused():
    with cluster(3) as made:
        one = made.brokers[1]
        create(one, "t", 6, 3)
        create(one, "alone", 3, 1)
        acked = send(made.bootstrap, "t", 6, 600, "before")
        assert len(acked) == 600
        until(lambda: all_in_sync(made, "t"))
        survivor = one.http.removeprefix("http://")
        refused = recover(survivor, "--lost", "2,3", "--execute", code=1)
        assert "broker 1 is connected with broker 2, which is not lost" in refused

        made.kill(2)
        made.kill(3)
        until(lambda: "broker 1 is connected" not in recover(survivor, "--lost", "2,3", code=None))
        plan = json.loads(recover(survivor, "--lost", "2,3", "--json"))
        assert plan["controller"]["survivor"] == 1 and plan["executed"] is False
        assert sum(part["topic"] == "t" for part in plan["partitions"]) == 6
        assert sum(part["end_offset"] for part in plan["partitions"] if part["topic"] == "t") == 600

        recover(survivor, "--lost", "2,3", "--execute")
        assert all(part.leader == 1 for part in partitions(one, "t"))
        acked += send(one.bootstrap, "t", 6, 300, "after")
        assert len(acked) == 900
        assert read(one.bootstrap, "t", 6, 900) == Unordered(acked)
        assert "UNSAFE RECOVERY" in one.log_path.read_text()
        assert "was declared lost: millstream cluster recover --unsafe by" in one.log_path.read_text()
        assert any("declared lost: 2, 3" in problem for problem in status(one)["problems"])

        returning = made.brokers[2]
        log = returning.log_path.read_text()
        with pytest.raises(BrokerFailed):
            made.restart(2)
        said = returning.log_path.read_text()[len(log) :]
        assert "was replaced or declared lost" in said, said

        made.kill(1)
        made.restart(1)
        assert read(one.bootstrap, "t", 6, 900) == Unordered(acked)
        made.replace(2)
        made.replace(3)
        until(lambda: all_in_sync(made, "t"))
        acked += send(made.bootstrap, "t", 6, 300, "whole")
        assert read(made.bootstrap, "t", 6, 1200) == Unordered(acked)
        made.kill(1)
        assert len(send(made.brokers[2].bootstrap, "t", 6, 60, "again")) == 60
