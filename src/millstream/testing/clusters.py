"""Several brokers on this machine as one cluster, for tests.

::

    with cluster(3) as c:
        producer = Producer({"bootstrap.servers": c.bootstrap})
        c.kill(2)       # SIGKILL to every process of broker 2
        c.restart(2)    # again on the same data
        c.pause(3)      # SIGSTOP; c.go_on(3) continues it

        c.partition({1}, {2, 3})  # nothing passes between the sides; clients reach all of them
        c.cut(1, 2)               # what 1 sends to 2 is dropped
        c.heal()

Where this process may make networks (root, iproute2) each broker has one of its own, with an address of its own; else
all of them are on the loopback, and a proxy stands before each. ``networks=False`` is for tests that cut nothing and
want neither: every broker is on the loopback, and nothing is in its way.

Brokers are numbered from 1. Each is a ``Broker`` of this package with a data directory of its own. They are started at
the same time, because none of them serves before a majority is there.
"""

import shutil
import signal
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import permutations, product
from pathlib import Path
from typing import Literal

from millstream.config.ports import free_ports as free_ports
from millstream.testing.namespaces import Namespaces, may_make
from millstream.testing.process import Broker
from millstream.testing.proxies import Proxies

Networks = bool | Literal["proxies"]
"""Whether the way between brokers can be cut: by namespaces if this process may make them, or else by proxies."""


class Cluster:
    """Brokers by node id; with ``racks`` broker n is in rack ``rack-n``.

    Lifecycle: ``start`` … ``close``; or the context manager `cluster`.
    """

    def __init__(
        self,
        count: int,
        data_dir: Path,
        settings: Mapping[str, object],
        *,
        shards: int,
        memory: str,
        networks: Networks = False,
        racks: bool = False,
    ) -> None:
        nodes = range(1, count + 1)
        spaces = _namespaces(nodes) if networks is True else None
        self._proxies = Proxies() if networks and spaces is None else None
        self._spaces = spaces
        self._networks = spaces or self._proxies
        self._host = host = spaces.address if spaces is not None else _loopback
        peers = {node: f"{host(node)}:{port}" for node, port in zip(nodes, free_ports(count), strict=True)}
        seeds = ",".join(peers.values())
        self.brokers: dict[int, Broker] = {}
        self._peers = peers
        self._binds: dict[int, int] = {}

        def make(node: int, peer: str, **more: object) -> Broker:
            own = {"node.id": node, "peer.listen": peer, "seeds": seeds, "shards.pin": "false", **self._bound(node)}
            if racks:
                own["broker.rack"] = f"rack-{node}"
            return Broker(
                settings={**own, **settings, **more},
                data_dir=data_dir / str(node),
                shards=shards,
                memory=memory,
                listen=f"{host(node)}:0",
                network=spaces.name(node) if spaces is not None else "",
            )

        self._make = make
        for node in nodes:
            self.brokers[node] = make(node, peers[node])

    def _bound(self, node: int) -> dict[str, object]:
        """Where a broker listens for the others if a proxy stands at its address."""
        if self._proxies is None:
            return {}
        if node not in self._binds:
            (self._binds[node],) = free_ports(1)
            self._proxies.stand_before(node, int(self._peers[node].rpartition(":")[2]), self._binds[node])
        return {"internal.peer.bind": f"127.0.0.1:{self._binds[node]}"}

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def peer_bytes(self) -> int:
        """What the brokers have sent each other so far; of a cluster with ``networks="proxies"`` only."""
        assert self._proxies is not None, "only proxies count"
        return self._proxies.passed_bytes

    def start(self) -> None:
        """Start every broker, and return when all of them serve.

        Raises:
            BrokerFailed: one did not come up; none runs then.
        """
        with ThreadPoolExecutor(len(self.brokers)) as starting:
            for done in as_completed([starting.submit(broker.start) for broker in self.brokers.values()]):
                if done.exception() is not None:
                    for broker in self.brokers.values():
                        broker.kill()  # the others may wait for this one for ever
                    done.result()

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

    def add(self, node: int) -> Broker:
        """Let another broker, with an empty directory, join; returns when it serves."""
        (port,) = free_ports(1)
        if self._spaces is not None:
            self._spaces.add(node)
        self._peers[node] = f"{self._host(node)}:{port}"
        self.brokers[node] = self._make(node, self._peers[node])
        return self.brokers[node].start()

    def replace(self, node: int, prepare: Callable[[Broker], object] | None = None) -> Broker:
        """Start a broker that was killed with an empty directory in the place of its own; returns when it serves.
        ``prepare`` may change it before it starts.
        """
        shutil.rmtree(self.brokers[node].data_dir)
        made = self.brokers[node] = self._make(node, self._peers[node], **{"broker.replace": "true"})
        if prepare is not None:
            prepare(made)
        return made.start()

    def partition(self, *sides: Collection[int]) -> None:
        """Let nothing pass between brokers of different sides; a broker that is in no side reaches all of them."""
        for one, other in permutations(sides, 2):
            for sender, receiver in product(one, other):
                self.cut(sender, receiver)

    def cut(self, sender: int, receiver: int) -> None:
        """Drop what ``sender`` sends to ``receiver``."""
        assert self._networks is not None, "a cluster that is made with networks=False can't be cut"
        self._networks.cut(sender, receiver)

    def heal(self) -> None:
        """End every cut."""
        if self._networks is not None:
            self._networks.heal()

    def close(self) -> None:
        """Stop every broker."""
        self.heal()
        for broker in self.brokers.values():
            broker.close()
        if self._networks is not None:
            self._networks.close()


@contextmanager
def cluster(
    count: int = 3,
    settings: Mapping[str, object] | None = None,
    *,
    shards: int = 1,
    memory: str = "128MiB",
    networks: Networks = True,
) -> Generator[Cluster]:
    """A cluster of ``count`` brokers in a temporary directory that goes with it.

    ``networks`` lets ``partition`` and ``cut`` work; "proxies" asks for those even where namespaces could be made.
    """
    directory = Path(tempfile.mkdtemp(prefix="millstream-cluster-"))
    try:
        made = Cluster(count, directory, settings or {}, shards=shards, memory=memory, networks=networks)
        try:
            made.start()
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _namespaces(nodes: Iterable[int]) -> Namespaces | None:
    """The networks of brokers; None where the kernel refuses them, as in a container without the capability."""
    if not may_make():
        return None
    try:
        return Namespaces(nodes)
    except RuntimeError:
        return None


def _loopback(node: int) -> str:
    _ = node
    return "127.0.0.1"
