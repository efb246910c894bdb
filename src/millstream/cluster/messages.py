"""What shards say to each other about the cluster: mailbox methods 40 to 59 and their payloads.

=====  ================  =========================================================================
  40   ``SUBMIT``        any shard asks the controller's; answered when every shard has applied
  41   ``APPLY``         the controller's shard sends committed commands, in log order
  42   ``APPLIED``       a shard reports to the controller's which revision it has applied
  43   ``LEADERS``       a partition's home shard tells the others its leader epoch
  44   ``QUORUM``        any shard asks the controller's how far its log is
  45   ``MOVE``          any shard asks the controller's to have a leadership moved
  46   ``MOVE_HERE``     the controller's shard asks a partition's home to hand its leadership over
  47   ``BEGIN``         the controller's shard tells that new replicas are noted on this broker's disk
  50   ``REGISTERED``    the controller's shard tells that this broker is registered, and knows what it has
  51   ``IN_STORE``      a shard tells the controller's that the object store has what its files have
  52   ``TAKEN``         the controller's shard tells that partitions of this broker were taken over
  53   ``FAILED_HERE``   a shard tells shard 0 which of its replicas have failed
  54   ``FAILED_OF``     shard 0 tells the others which replicas of a broker have failed
=====  ================  =========================================================================
"""

from typing import Final

import msgspec

from millstream.core.controller.commands import AnyCommand

SUBMIT: Final = 40
APPLY: Final = 41
APPLIED: Final = 42
LEADERS: Final = 43
QUORUM: Final = 44
MOVE: Final = 45
MOVE_HERE: Final = 46
BEGIN: Final = 47
REGISTERED: Final = 50
IN_STORE: Final = 51
TAKEN: Final = 52
FAILED_HERE: Final = 53
FAILED_OF: Final = 54

CONTROLLER_SHARD: Final = 0


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """Commands that are committed together.

    ``base`` is the revision that they follow (the offset of the first). ``homes`` are the home shards of the partitions
    that they create or give to other brokers, in the order in which they do.
    """

    base: int
    commands: tuple[AnyCommand, ...]
    homes: tuple[int, ...]

    @property
    def end(self) -> int:
        """The revision after them."""
        return self.base + len(self.commands)


LeaderFact = tuple[int, int, int, tuple[int, ...]]
"""(index, epoch, node id of the leader or one of `model.cluster.UNKNOWN` and `LOST`, node ids of the replicas that are
in sync; empty if all are, or if nothing has changed).
"""


class LeaderEpochs(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of one topic and their leaders: (index, epoch, node id, node ids of the replicas in sync)."""

    topic_id: bytes
    epochs: list[LeaderFact]


class Quorum(msgspec.Struct, frozen=True, array_like=True):
    """How far the controller's log is, as the broker that answers knows it; offsets are exclusive.

    ``leader`` and ``voters`` are node ids, -1 for an unknown leader; ``log_end_offset`` is that of the broker that
    answers. The leader has ``peers``: (node id, log end offset, milliseconds since its last answer).
    """

    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    leader: int
    voters: tuple[int, ...]
    peers: tuple[tuple[int, int, int], ...] = ()


encode = msgspec.msgpack.Encoder().encode
decode_commit = msgspec.msgpack.Decoder(Commit).decode
decode_revision = msgspec.msgpack.Decoder(int).decode
decode_quorum = msgspec.msgpack.Decoder(Quorum).decode
decode_leaders = msgspec.msgpack.Decoder(tuple[int, list[LeaderEpochs]]).decode
"""(revision that the sender has applied, leaders)."""
