"""A drained broker hands over what others can lead; a replica that is alone stands for election all the same."""

from types import SimpleNamespace

from millstream.core.raft.messages import Configuration
from millstream.model.replication import replica_id
from millstream.raft.shard import RaftShard


class Group:
    def __init__(self, *nodes, outgoing=()):
        self.configuration = Configuration(tuple(map(replica_id, nodes)), tuple(map(replica_id, outgoing)))
        self.left = 0

    def leave(self):
        self.left += 1
        return True


def test_only_groups_of_several_voters_are_handed_over():
    alone, several, moving = Group(1), Group(1, 2, 3), Group(2, outgoing=(1,))
    shard = SimpleNamespace(groups={1: alone, 2: several, 3: moving})
    RaftShard.hand_over(shard)
    assert (alone.left, several.left, moving.left) == (0, 1, 1)
    assert RaftShard.leave(shard) == 3, "a broker that stops leads nothing any more"
    assert (alone.left, several.left, moving.left) == (1, 2, 2)
