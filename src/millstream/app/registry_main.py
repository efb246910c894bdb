"""``python -m millstream.app.registry_main FD BOOTSTRAP``: the process of the schema registry.

The supervisor starts it at the first request for it (``app.registry_process``). FD is its end of a socket pair.
"""

import os
import signal
import socket
import sys

from millstream.client import Cluster
from millstream.client.compacted_topic import CompactedTopic
from millstream.registry.serve import TOPIC, Registry, serve
from millstream.shard.process import rename
from millstream.telemetry.log import log

NICE = 5
"""A registration is not in a hurry; acknowledgements of records are."""


def main() -> int:
    """Serve until the supervisor closes the socket or exits."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the supervisor decides when to stop
    rename("registry")
    os.nice(NICE)
    log.who("registry")
    channel = socket.socket(fileno=int(sys.argv[1]))
    cluster = Cluster(sys.argv[2], client_id="millstream-registry", timeout_s=10.0)
    try:
        serve(channel, Registry(CompactedTopic(cluster, TOPIC), lambda message: log.warning("%s", message)))
    except OSError:
        pass  # the supervisor has exited
    finally:
        cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
