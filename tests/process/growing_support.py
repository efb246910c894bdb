"""What tests of growing clusters share: the command line, the state of the cluster, and who is in sync."""

import json
import subprocess
import sys

from cluster_support import partitions
from moving_support import DEADLINE_S


def millstream(broker, *words, code=0):
    """What a command prints."""
    command = [sys.executable, "-m", "millstream.cli", *words, "--bootstrap", broker.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def status(broker):
    command = [sys.executable, "-m", "millstream.cli", "cluster", "health", "--json", "--bootstrap", broker.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return json.loads(done.stdout) if done.stdout else {"healthy": False, "voters": [], "brokers": []}


def in_sync(broker, topic):
    return [sorted(part.isrs) == sorted(part.replicas) for part in partitions(broker, topic)]
