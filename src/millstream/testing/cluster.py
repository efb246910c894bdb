"""Several brokers on this machine as one cluster, for tests.

::

    with cluster(3) as c:
        producer = Producer({"bootstrap.servers": c.bootstrap})
        c.kill(2)       # SIGKILL to every process of broker 2
        c.restart(2)    # again on the same data
        c.pause(3)      # SIGSTOP; c.go_on(3) continues it

Brokers are numbered from 1. Each is a ``Broker`` of this package with a data directory of its own. They are started at
the same time, because none of them serves before a majority is there.
"""

import shutil
import signal
import socket
import tempfile
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from millstream.testing.process import Broker


class Cluster:
    """Brokers by node id.

    Lifecycle: ``start`` … ``close``; or the context manager `cluster`.
    """

    def __init__(self, count: int, data_dir: Path, settings: Mapping[str, object], *, shards: int, memory: str) -> None:
        ports = _free_ports(count)
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.brokers: dict[int, Broker] = {}
        for node, port in enumerate(ports, 1):
            own = {"node.id": node, "peer.listen": f"127.0.0.1:{port}", "seeds": seeds, "shards.pin": "false"}
            self.brokers[node] = Broker(
                settings={**own, **settings}, data_dir=data_dir / str(node), shards=shards, memory=memory
            )

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        """Start every broker, and return when all of them serve."""
        with ThreadPoolExecutor(len(self.brokers)) as starting:
            list(starting.map(Broker.start, self.brokers.values()))

    def kill(self, node: int) -> None:
        """SIGKILL to every process of a broker."""
        self.brokers[node].kill()

    def pause(self, node: int) -> None:
        """Stop every process of a broker, until ``go_on``."""
        self.brokers[node].signal_all(signal.SIGSTOP)

    def go_on(self, node: int) -> None:
        """Continue a broker that was paused."""
        self.brokers[node].signal_all(signal.SIGCONT)

    def restart(self, node: int) -> None:
        """Start a broker that was killed or stopped, on the same data; returns when it serves."""
        self.brokers[node].start()

    def close(self) -> None:
        """Stop every broker."""
        for broker in self.brokers.values():
            broker.close()


@contextmanager
def cluster(
    count: int = 3, settings: Mapping[str, object] | None = None, *, shards: int = 1, memory: str = "128MiB"
) -> Generator[Cluster]:
    """A cluster of ``count`` brokers in a temporary directory that goes with it."""
    directory = Path(tempfile.mkdtemp(prefix="millstream-cluster-"))
    made = Cluster(count, directory, settings or {}, shards=shards, memory=memory)
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(directory, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
