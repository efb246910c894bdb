"""What tests of growing clusters share: the command line, the state of the cluster, and who is in sync."""

import json

from cluster_support import partitions

from millstream.testing.stem import run_command


def millstream(broker, *words, code=0):
    """What a command prints."""
    done = run_command(*words, "--bootstrap", broker.bootstrap)
    assert done.returncode == code, done.stderr
    return done.stdout


def status(broker):
    done = run_command("cluster", "health", "--json", "--bootstrap", broker.bootstrap)
    return json.loads(done.stdout) if done.stdout else {"healthy": False, "voters": [], "brokers": []}


def in_sync(broker, topic):
    return [sorted(part.isrs) == sorted(part.replicas) for part in partitions(broker, topic)]
