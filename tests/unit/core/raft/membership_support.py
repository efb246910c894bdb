"""Replicas whose configuration changes."""

from millstream.core.raft.messages import Configuration
from millstream.core.raft.options import RaftOptions
from millstream.core.raft.raft import Raft
from millstream.core.raft.ready import LogPersisted, Recovered
from millstream.model.replication import ReplicaId, Seed, TimeUs

STEP_US = 10_000


OPTIONS = RaftOptions()


class Replicas:
    """Cores whose disks and network do at once what is asked; ``cut`` has those that nothing reaches."""

    def __init__(self, voters, others=()):
        self.now = 0
        self.cut = set()
        first = Configuration(tuple(map(ReplicaId, voters)))
        empty = Configuration(())
        self.cores = {
            ReplicaId(node): Raft(
                ReplicaId(node), Recovered(first if node in voters else empty), Seed(node), TimeUs(0), OPTIONS
            )
            for node in (*voters, *others)
        }
        self.ends = dict.fromkeys(self.cores, 0)

    @property
    def leader(self):
        leading = [core for node, core in self.cores.items() if core.leads and node not in self.cut]
        return max(leading, key=lambda core: core.term) if leading else None

    def run(self, until, limit_us=20_000_000):
        limit = self.now + limit_us
        while not until():
            assert self.now < limit, "it did not happen"
            self.now += STEP_US
            for node, core in self.cores.items():
                core.deadline_passed(TimeUs(self.now))
                if self.now % OPTIONS.heartbeat_us < STEP_US:
                    self.deliver(node, core.beats(TimeUs(self.now)))
                self.drain(node)

    def deliver(self, sender, messages):
        for outgoing in messages:
            if not {sender, outgoing.to} & self.cut and outgoing.to in self.cores:
                self.cores[outgoing.to].step(TimeUs(self.now), sender, outgoing.message)
                self.drain(outgoing.to)

    def drain(self, node):
        core, now = self.cores[node], TimeUs(self.now)
        while True:
            ready = core.ready()
            if ready.state is not None:
                core.state_persisted(now, ready.state)
            if ready.write is not None:
                core.log_persisted(now, LogPersisted(ready.write.end, ready.write.term))
            appends = []
            for send in ready.sends:
                append = core.sent(send, send.limit, 1)
                if append is not None:
                    appends.append((send.to, append))
            self.deliver(node, ready.messages)
            for to, append in appends:
                if not {node, to} & self.cut and to in self.cores:
                    self.cores[to].step(now, node, append)
                    self.drain(to)
            if ready.state is None and ready.write is None and not ready.sends and not ready.messages:
                return

    def steer(self, voters, learners=()):
        def step():
            leader = self.leader
            return leader is not None and leader.steer(TimeUs(self.now), voters, learners)

        self.run(step)

    def configuration(self, node):
        return self.cores[node].replica.log.configuration
