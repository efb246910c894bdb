"""Faults of a cluster of three brokers under load, drawn from a seed, and the comparison of what the brokers keep.

Each fault ends before the next one begins, and clients have to get on after each. The history of the clients is judged
by ``millstream.testing.history_check``; `compare_logs` judges what the replicas hold.
"""

import random
import time
from pathlib import Path

from millstream.cli.cluster_changes import change_cluster
from millstream.cli.failure import CommandFailed
from millstream.format.segment import WalkEnd, parse_batch
from waits import moment, until

TOPIC = "faulted"
FULL, ROOMY = "disk full: producers are refused", "space again: producers are let in"


class Faults:
    """The faults of one run; ``done`` has how often each was inflicted."""

    def __init__(self, cluster, workload, seed, disks=None):
        """``disks`` are the file systems of the brokers by node id, if they have some of their own."""
        self.cluster = cluster
        self.disks = disks
        self.workload = workload
        self.chance = random.Random(seed)
        self.done = {}

    def inflict(self):
        """One fault from its begin to its end; clients get on during or after it."""
        kinds = [
            *(self.kill, self.kill_two, self.pause, self.isolate, self.cut_one_way, self.cut_pair, self.roll),
            self.leader_storm,
        ]
        if self.disks:
            kinds.append(self.full_disk)
        kind = self.chance.choice(kinds)
        self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1
        node = self.chance.choice([1, 2, 3])
        print(
            f"{time.strftime('%H:%M:%S')} {kind.__name__} {node}, {self.workload.acknowledged} acknowledged", flush=True
        )
        kind(node)
        self.workload.wait_progress(300)

    def others(self, node):
        return [other for other in (1, 2, 3) if other != node]

    def for_a_while(self):
        """Shorter and longer than an election, and than the time after which a broker counts as dead."""
        moment(self.chance.choice([0.3, 1.0, 2.5, 7.0]))

    def kill(self, node):
        self.cluster.kill(node)
        self.workload.wait_progress(300)
        self.cluster.restart(node)

    def kill_two(self, node):
        """Nothing is acknowledged meanwhile; all that was is there afterwards."""
        self.cluster.kill(node)
        other = self.chance.choice(self.others(node))
        self.cluster.kill(other)
        self.cluster.restart(other)
        self.workload.wait_progress(300)
        self.cluster.restart(node)

    def pause(self, node):
        self.cluster.pause(node)
        self.for_a_while()
        self.cluster.go_on(node)

    def isolate(self, node):
        self.cluster.partition({node}, set(self.others(node)))
        self.workload.wait_progress(300)
        self.for_a_while()
        self.cluster.heal()

    def cut_pair(self, node):
        """Two brokers do not reach each other; both reach the third."""
        one, other = self.others(node)
        self.cluster.partition({one}, {other})
        self.for_a_while()
        self.cluster.heal()

    def cut_one_way(self, node):
        self.cluster.cut(node, self.chance.choice(self.others(node)))
        self.for_a_while()
        self.cluster.heal()

    def roll(self, node):
        """Each broker in turn is stopped in order and started again."""
        for each in (node, *self.others(node)):
            assert self.cluster.brokers[each].stop() == 0
            self.cluster.restart(each)

    def leader_storm(self, _node):
        """Brokers give up all that they lead, one after the other, as soon as the one before has done so."""
        moves = self.chance.randint(3, 9)
        for _ in range(moves):
            node = self.chance.choice([1, 2, 3])
            self._set_mode(node, "drained")
            until(lambda node=node: not self._leads(node), f"broker {node} gives up its leaderships")
            self._set_mode(node, "serving")

    def full_disk(self, node):
        """Nothing more fits on a broker's disk, whatever it leads; the others go on, and space heals it."""
        disk, log = self.disks[node], self.cluster.brokers[node].log_path
        full, roomy = (log.read_text(errors="replace").count(text) for text in (FULL, ROOMY))
        disk.fill()
        try:
            until(lambda: log.read_text(errors="replace").count(FULL) > full, f"broker {node} notices")
            self.for_a_while()
        finally:
            disk.empty()
        until(lambda: log.read_text(errors="replace").count(ROOMY) > roomy, f"broker {node} goes on")

    def _set_mode(self, node, mode):
        until(lambda: self._asked({"type": "set_broker_mode", "node": node, "mode": mode}), f"{node} is {mode}")

    def _asked(self, request):
        """Whether the controller has taken it: there may be none at the moment."""
        try:
            change_cluster(self.cluster.bootstrap, request)
        except CommandFailed:
            return False
        return True

    def _leads(self, node):
        partitions = self.workload.admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
        return any(partition.leader == node for partition in partitions.values())


def compare_logs(cluster, partitions):
    """After an orderly stop of all brokers: every replica of the topic has the same batches."""
    for index in range(partitions):
        found = {node: batches(broker.data_dir, index) for node, broker in cluster.brokers.items()}
        first = found[1]
        assert first, f"partition {index} is empty"
        for node, other in found.items():
            parted = next((pair for pair in zip(first, other, strict=False) if pair[0] != pair[1]), None)
            assert parted is None, f"partition {index}: brokers 1 and {node} have diverged at {parted}"
            assert len(first) == len(other), (
                f"partition {index}: broker {node} has {len(other)} of {len(first)} batches"
            )


def batches(data_dir: Path, index):
    """(base offset, last offset, leader epoch, checksum) of each batch of the largest topic's partition."""
    topics = sorted(data_dir.glob(f"topics/*/{index}"), key=lambda path: -sum(f.stat().st_size for f in path.iterdir()))
    found = []
    for path in sorted(topics[0].glob("*.log")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            try:
                batch = parse_batch(data, position, position, len(data))
            except WalkEnd:
                break
            found.append((batch.base_offset, batch.last_offset, batch.leader_epoch, batch.crc))
            position += batch.size
    return found
