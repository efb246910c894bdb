"""Three real Apache Kafka brokers on this machine as one cluster, each a broker and a voter of the controller.

    with kafka_cluster(3) as peer:
        peer.bootstrap, peer.pids
        peer.kill(2); peer.restart(2)

The brokers have the heap of measured runs (1 GiB each) and Kafka's defaults, except that internal topics have three
replicas. A broker that does not come up raises ``PeerUnavailable`` with the end of its log.
"""

import base64
import contextlib
import tempfile
import uuid
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.peers.kafka import STORAGE_TOOL, Kafka, PeerUnavailable, free_port, java_tool

HEAP = "1g"


class KafkaNode(Kafka):
    """One broker of the cluster. ``voters`` are the addresses of the controller's listeners by node id."""

    def __init__(self, directory: Path, node: int, voters: Mapping[int, str], cluster_id: str) -> None:
        self._node = node
        self._voters = voters
        self._cluster_id = cluster_id
        super().__init__(directory, HEAP, {}, ())

    def _configure(self, properties: Mapping[str, str]) -> None:
        count = str(len(self._voters))
        super()._configure(
            {
                **properties,
                "node.id": str(self._node),
                "controller.quorum.bootstrap.servers": "",
                "controller.quorum.voters": ",".join(f"{node}@{where}" for node, where in self._voters.items()),
                "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self._voters[self._node]}",
                "offsets.topic.replication.factor": count,
                "transaction.state.log.replication.factor": count,
                "transaction.state.log.min.isr": "2",
                "share.coordinator.state.topic.replication.factor": count,
                "share.coordinator.state.topic.min.isr": "2",
            }
        )

    def format(self) -> None:
        done = java_tool(STORAGE_TOOL, "format", "-t", self._cluster_id, "-c", str(self._config))
        if done.returncode != 0:
            raise PeerUnavailable(f"Kafka did not format its directory: {(done.stdout + done.stderr)[-2000:]}")


class KafkaCluster:
    """The brokers by node id, from 1. Lifecycle: ``start`` … ``close``."""

    def __init__(self, directory: Path, count: int) -> None:
        voters = {node: f"127.0.0.1:{free_port()}" for node in range(1, count + 1)}
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        self.brokers: dict[int, Kafka] = {}
        for node in voters:
            home = directory / str(node)
            home.mkdir()
            self.brokers[node] = KafkaNode(home, node, voters, cluster_id)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def pids(self) -> list[int]:
        """Root processes of the brokers that run."""
        return [broker.pid for broker in self.brokers.values()]

    def start(self) -> None:
        """Format and start all brokers, and return when each of them answers."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(lambda broker: broker.format(), self.brokers.values()))
        for broker in self.brokers.values():
            broker.spawn()  # in this thread: they are killed when the thread that made them ends
        for broker in self.brokers.values():
            broker.wait_until_it_answers()

    def kill(self, node: int) -> None:
        self.brokers[node].kill()

    def restart(self, node: int) -> None:
        self.brokers[node].start()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()


@contextlib.contextmanager
def kafka_cluster(count: int = 3) -> Generator[KafkaCluster]:
    """Runs a cluster in a temporary directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="kafka-cluster-", ignore_cleanup_errors=True) as directory:
        made = KafkaCluster(Path(directory), count)
        try:
            made.start()
            yield made
        finally:
            made.close()
