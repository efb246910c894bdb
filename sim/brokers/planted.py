"""Bugs planted between the core and the clients, each found within a number of histories.

A bug replaces a function while it is planted; production code knows nothing of it. The bugs of the core itself are in
`planted`. ``python -m sim brokers --planted`` shows the table.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from millstream.app.stale_topics import remove_stale_topics
from millstream.cluster.controller_install import ControllerInstall
from millstream.cluster.group_members import GroupMembers
from millstream.coordinator import marker_sender
from millstream.coordinator.groups_partition import GroupsPartition
from millstream.coordinator.state_partition import _Batch
from millstream.core.controller import brokers as controller_brokers
from millstream.core.controller import state as controller_state
from millstream.core.controller.commands import FeatureLevelRaised
from millstream.core.group import commit
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.producer_state import ProducerState
from millstream.core.raft import commit as raft_commit
from millstream.core.raft import leading, quorum
from millstream.core.txn.coordinator import TransactionCoordinator
from millstream.core.txn.messages import Outputs
from millstream.format.names import LOST_FILE
from millstream.model.cluster import FeatureLevel
from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.partition.replica import following, repairing
from millstream.partition.replica.repairing import Repairs
from millstream.partition.table import PartitionTable
from millstream.partition.waiters import Ack
from millstream.raft.contacts import HeardSets, LedSets
from millstream.raft.replicated import ReplicatedGroup
from millstream.raft.saving import Votes
from millstream.raft.writes import Writes
from millstream.storage.disk import make_directories
from millstream.storage.log import lost
from millstream.storage.log.log import Log
from millstream.storage.processes.writer import TickWriter
from millstream.storage.segments import incoming, reads
from millstream.storage.wal.ticks import W_STATUS
from sim.brokers import upgrades, wire
from sim.brokers.controlled import ControlledBroker
from sim.brokers.history import play
from sim.brokers.settings import draw
from sim.engine import histories
from sim.engine.local_storage import DATA_DIR
from sim.engine.planting import Hunt, PlantedBug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.core.controller.commands import AnyCommand
    from millstream.core.controller.state import ControllerState
    from millstream.core.raft.messages import Configuration
    from millstream.core.raft.ready import VoteState
    from millstream.core.raft.replica import Leading, Replica
    from millstream.format.epochs import LogState, StoredVote
    from millstream.model.quantities import Offset
    from millstream.model.replication import RaftPosition, ReplicaId, Term, TimeUs
    from millstream.peers.contact_items import Led, LedAgain
    from millstream.peers.hello import Hello
    from millstream.raft.contacts import Answer
    from millstream.storage.disk import Disk
    from millstream.storage.log.entries import SentEntries
    from millstream.storage.log.importing import StagedFiles
    from millstream.storage.recovery.recovery import RecoveryReport
    from millstream.storage.wal.ticks import Slot
    from sim.brokers.settings import Setting


def hunt(bug: PlantedBug, first_seed: int = 0) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up."""
    return histories.hunt(bug, play, first_seed, draw=draw)


# The bugs

_append_entries = Log.append_entries
_write = Log.write
_park = Partition.park
_tick_write = TickWriter.write
_ANY = frozenset(ErrorCode)
_recover = ControlledBroker.recover
_on_led = HeardSets.on_led
_reached = quorum.reached
_steer = GroupMembers._steer
_stage_lost = lost.stage_lost


def _reported(self: Log, sent: SentEntries, term: Term) -> None:
    _append_entries(self, sent, term)
    if self.owner.on_persisted is not None:
        self.owner.on_persisted(self.next_raft_position, term)


def _unannounced(self: ReplicatedGroup) -> None:
    self._led_term = None
    self._announced_serving = False


def _with_waiting(self: Writes) -> RaftPosition:
    waiting = self._waiting
    return waiting[-1].write.end if waiting else self._log.next_raft_position


def _voted_in_memory(self: Votes, state: VoteState) -> None:
    self._on_saved(state)


def _trimmed_here(self: ReplicatedGroup, offset: Offset) -> None:
    self._check_leads()
    self.log.trim_prefix(offset)


def _serves(self: PartitionTable, partition: Partition) -> None:
    self.serves(partition)


def _leads(self: ReplicatedGroup) -> bool:
    return self._led_term is not None


def _one_disk(self: Partition, ack: Ack, *, own_sync: bool) -> None:
    _ = own_sync
    _park(self, ack, own_sync=True)


def _stale_topics_removed(self: ControlledBroker) -> RecoveryReport:
    report = _recover(self)
    remove_stale_topics(self.disk, DATA_DIR)
    return report


def _answered(_replica: object, leader: Leading, _voter: ReplicaId) -> int:
    return leader.round


def _begun_anew(disk: Disk, directory: str, _state: LogState) -> None:
    """The replica comes up as one of a new group."""
    make_directories(disk, directory)


def _vote_of_sender(*votes: StoredVote) -> StoredVote:
    """What the replica itself has promised is forgotten."""
    return votes[1]


def _written_anyway(self: TickWriter, slot: Slot) -> bool:
    """A write or a sync that failed counts as done."""
    _tick_write(self, slot)
    slot.words[W_STATUS] = 0
    return True


def _no_more(_self: object, _now_us: int, _now_ms: int) -> Outputs:
    """What was decided before is left as it is."""
    return Outputs()


def _counted_at_once(self: GroupsPartition, content: bytes, receipts: list[int]) -> None:
    """What a group writes counts before a quorum has it."""
    self._under_way.append(_Batch(receipts, 0))
    self._partition.append(content, _nothing)


def _anybody(*_: object) -> ErrorCode:
    """A commit is taken from everybody."""
    return ErrorCode.NONE


def _unowned(*_: object) -> bool:
    """A partition is free as soon as its owner is asked for it."""
    return False


def _new_voters_only(configuration: Configuration, value_of: Callable[[ReplicaId], int]) -> int:
    """In a joint configuration the new voters decide alone."""
    return _reached(replace(configuration, outgoing=()), value_of)


def _done_at_once(self: GroupMembers, raft_group: int) -> tuple[int, ...] | None:
    """A move is reported as done when it is known."""
    _steer(self, raft_group)
    move = self._cache.state.moves.get(raft_group)
    return None if move is None or raft_group in self._reported else move.target


def _nothing(*_: object) -> None:
    pass


def _sound(*_: object) -> str:
    """The bytes of a batch are served unchecked."""
    return ""


def _received_before(self: ControllerInstall, files: StagedFiles, _data: bytes) -> None:
    """The broker's own snapshot stays in the place of the leader's."""
    self._put_in_place(files, 0)


def _unmarked(disk: Disk, directory: str, vote: StoredVote) -> str:
    """The empty log that takes the place of a damaged one counts as the log of a new replica."""
    staged = _stage_lost(disk, directory, vote)
    disk.unlink(f"{staged}/{LOST_FILE}")
    return staged


def _settled_untold(replica: Replica, peer: ReplicaId) -> bool:
    """What a peer knows to be committed does not matter."""
    progress = replica.leading.peers.get(peer) if replica.leading is not None else None
    return progress is not None and not progress.in_flight and progress.durable == replica.log.end


def _known_anyway(
    self: HeardSets, now: TimeUs, sender: ReplicaId, item: Led | LedAgain, answer: Answer
) -> Iterable[int]:
    """A set that is not here is answered as if it were."""
    return _on_led(self, now, sender, item, lambda followed: answer(replace(followed, known=True)))


def _raised_by_the_living(state: ControllerState) -> list[AnyCommand]:
    """A broker that is not alive is not asked what it knows."""
    levels = [broker.profile.feature_level for broker in state.registry.brokers.values() if not broker.fenced]
    level = min(levels, default=state.feature_level)
    return [FeatureLevelRaised(level)] if level > state.feature_level else []


def _raised_by_the_first(state: ControllerState) -> list[AnyCommand]:
    """One broker that knows a level is enough."""
    level = max(broker.profile.feature_level for broker in state.registry.brokers.values())
    return [FeatureLevelRaised(level)] if level > state.feature_level else []


def _level_raised(state: ControllerState, command: FeatureLevelRaised) -> None:
    state.feature_level = command.level


def _applied_by(
    apply: Callable[[ControllerState, FeatureLevelRaised], None],
) -> tuple[object, str, dict[type, Callable[..., None]]]:
    """The replacement of what a rise of the level does to the state."""
    return controller_state, "_APPLY", {**controller_state._APPLY, FeatureLevelRaised: apply}


def _newer_version(one: Hello, other: Hello) -> int:
    """Two brokers speak what one of them knows."""
    return max(one.version_max, other.version_max)


def _never_too_old(state: ControllerState, command: FeatureLevelRaised) -> None:
    """A release takes any level."""
    state.feature_level = min(command.level, controller_state.FEATURE_LEVEL)


def _known(level: FeatureLevel, what: object) -> None:
    """A release decodes any command ..."""


def _lowest_level(command: AnyCommand) -> FeatureLevel:
    """... and applies it at any level."""
    _ = command
    return FeatureLevel(0)


# What makes them reachable


def _any(setting: Setting) -> Setting:
    """Several brokers, and nothing may be lost."""
    return replace(setting, nodes=max(setting.nodes, 3), write_caching=False)


def _crashing(setting: Setting) -> Setting:
    return replace(_any(setting), crashes=True)


def _slow_disks(setting: Setting) -> Setting:
    """Power fails while much waits for the disks."""
    timeout_us = setting.options.election_timeout_us
    return replace(_crashing(setting), nodes=3, sync_us=timeout_us // 2, fault_every_us=timeout_us, operations_per_s=40)


def _cut_off(setting: Setting) -> Setting:
    """Leaders are cut off with batches that no other replica has, and lead again."""
    return replace(
        _any(setting),
        nodes=3,
        producers=1,
        in_flight=5,
        crashes=False,
        cuts=True,
        transfers=True,
        trims=False,
        loss=0.2,
    )


def _trimming(setting: Setting) -> Setting:
    return replace(_crashing(setting), trims=True)


def _electing(setting: Setting) -> Setting:
    """A leader learns late that its term start is committed."""
    return replace(_crashing(setting), delay_us=20_000, loss=0, operations_per_s=100)


def _partitioned(setting: Setting) -> Setting:
    """Two leaders at a time: the old one does not ask the others whether it leads."""
    options = replace(setting.options, check_quorum=False)
    return replace(_any(setting), nodes=3, crashes=False, cuts=True, options=options)


def _controlled(setting: Setting) -> Setting:
    return replace(_crashing(setting), nodes=3, cuts=True, controlled=True)


def _grouped(setting: Setting) -> Setting:
    return replace(_crashing(setting), groups=True)


def _wiped(setting: Setting) -> Setting:
    """Files are lost while the others are down in turn."""
    return replace(_cut_off(setting), crashes=True, wipes=True, sync_us=0)


def _sent_files(setting: Setting) -> Setting:
    """Replicas are away for long, and the log start moves past them."""
    return replace(_cut_off(setting), crashes=True, trims=True, trims_far=True, sync_us=0)


def _failing_disks(setting: Setting) -> Setting:
    """Power fails after a disk has failed."""
    timeout_us = setting.options.election_timeout_us
    return replace(_crashing(setting), disk_faults=True, stalls=False, fault_every_us=timeout_us)


def _sharing(setting: Setting) -> Setting:
    """Members come and go while their coordinator does."""
    return replace(_crashing(setting), members=True, groups=True, cuts=True)


def _moving(setting: Setting) -> Setting:
    """Replicas move while brokers are cut off."""
    return replace(
        _controlled(setting), moves=True, nodes=5, loss=0, fault_every_us=setting.options.election_timeout_us
    )


def _transacting(setting: Setting) -> Setting:
    """Leaders come and go while transactions end."""
    return replace(_crashing(setting), transactions=True, cuts=True, transfers=True, trims=False)


def _rotting(setting: Setting) -> Setting:
    """Segments close soon, and are read."""
    return replace(
        _crashing(setting), nodes=3, rots=True, trims=False, controlled=False, size=1_000, operations_per_s=50
    )


def _resting(setting: Setting) -> Setting:
    """Groups have nothing to do for long while brokers come, go and are cut off."""
    timeout_us = setting.options.election_timeout_us
    return replace(
        _crashing(setting),
        nodes=3,
        operations_per_s=1,
        fault_every_us=3 * timeout_us,
        round_us=20 * timeout_us,
        cuts=True,
        groups=False,
        options=replace(setting.options, check_quorum=True),
    )


def _received_snapshots(setting: Setting) -> Setting:
    """Brokers are away while topics are made and move, and receive the controller's snapshot."""
    return replace(
        _moving(setting),
        nodes=3,
        snapshots=True,
        round_us=10 * setting.options.election_timeout_us,
        operations_per_s=50,
    )


def _upgraded(setting: Setting) -> Setting:
    """Brokers are upgraded while others crash."""
    return replace(
        _crashing(setting),
        nodes=3,
        rounds=2,
        round_us=10 * setting.options.election_timeout_us,
        operations_per_s=25,
        controlled=True,
        upgrades=True,
    )


PLANTED = (
    PlantedBug("a write is reported when it is written", ((Log, "append_entries", _reported),), 100, _slow_disks),
    PlantedBug("a vote is not durable", ((Votes, "save", _voted_in_memory),), 40, _crashing),
    PlantedBug("a replaced batch is acknowledged", ((ReplicatedGroup, "_resign", _unannounced),), 20, _cut_off),
    PlantedBug("an end is announced before it is written", ((Writes, "log_end", property(_with_waiting)),), 60, _any),
    PlantedBug("acks=all waits for one disk", ((Partition, "park", _one_disk),), 20, _any),
    PlantedBug("producers keep what a truncation took", ((ProducerState, "take_back", _nothing),), 400, _cut_off),
    PlantedBug("a follower learns no producers", ((following, "record_batches", _nothing),), 20, _cut_off),
    PlantedBug("a log start is not agreed", ((ReplicatedGroup, "propose_log_start", _trimmed_here),), 20, _trimming),
    PlantedBug(
        "an end is answered before the term start",
        ((ReplicatedGroup, "knows_committed", property(_leads)),),
        100,
        _electing,
    ),
    PlantedBug(
        "files of a deletion that is not committed are removed",
        ((ControlledBroker, "recover", _stale_topics_removed),),
        200,
        _controlled,
    ),
    PlantedBug("a read is served without a round", ((leading, "round_of", _answered),), 300, _partitioned),
    PlantedBug("a coordinator serves before its term start", ((PartitionTable, "leads", _serves),), 100, _grouped),
    PlantedBug("a replica without its files counts as it did", ((lost, "mark_lost", _begun_anew),), 100, _wiped),
    PlantedBug("a failed sync counts as done", ((TickWriter, "write", _written_anyway),), 60, _failing_disks),
    PlantedBug("a marker that is refused counts as written", ((marker_sender, "_FINAL", _ANY),), 60, _transacting),
    PlantedBug(
        "a new coordinator writes no markers", ((TransactionCoordinator, "loaded", _no_more),), 20, _transacting
    ),
    PlantedBug(
        "a group answers before its write is committed", ((GroupsPartition, "_append", _counted_at_once),), 20, _sharing
    ),
    PlantedBug(
        "a commit of a former member is taken",
        ((commit, "_check", _anybody), (commit, "check_consumer_commit", _anybody)),
        20,
        _sharing,
    ),
    PlantedBug("a partition is given before it is given back", ((ConsumerGroup, "is_owned", _unowned),), 20, _sharing),
    PlantedBug("a leader that steps down goes on in its set", ((LedSets, "leave", _nothing),), 60, _resting),
    PlantedBug("a set that a broker has lost counts as known", ((HeardSets, "on_led", _known_anyway),), 60, _resting),
    PlantedBug("a follower at rest was not told the end", ((leading, "is_settled", _settled_untold),), 60, _resting),
    PlantedBug("a damaged batch is served", ((reads, "_damage", _sound),), 20, _rotting),
    PlantedBug("damage is found and left", ((Repairs, "found", _nothing),), 20, _rotting),
    PlantedBug("a replica with damage counts as it did", ((repairing, "stage_lost", _unmarked),), 100, _rotting),
    PlantedBug(
        "a replica made while its broker was away counts as lost",
        ((ControllerInstall, "_make_new_replicas", _nothing),),
        20,
        _received_snapshots,
    ),
    PlantedBug(
        "a snapshot is taken that the log does not go on from",
        ((ControllerInstall, "_received", _received_before),),
        40,
        _received_snapshots,
    ),
    PlantedBug("new voters decide alone", ((raft_commit, "reached", _new_voters_only),), 60, _moving),
    PlantedBug("a move counts as done before its members do", ((GroupMembers, "_steer", _done_at_once),), 20, _moving),
    PlantedBug(
        "the level rises with the first broker that knows it",
        ((controller_brokers, "_raised_level", _raised_by_the_first), _applied_by(_level_raised)),
        5,
        _upgraded,
    ),
    PlantedBug(
        "the level rises without the brokers that are down",
        ((controller_brokers, "_raised_level", _raised_by_the_living), _applied_by(_level_raised)),
        60,
        _upgraded,
    ),
    PlantedBug(
        "an older broker is sent what the newer protocol has",
        ((wire, "agreed_version", _newer_version),),
        5,
        _upgraded,
    ),
    PlantedBug(
        "an older release goes on in a newer cluster",
        (
            _applied_by(_never_too_old),
            (upgrades, "_check_known", _known),
            (controller_state, "level_of", _lowest_level),
        ),
        5,
        _upgraded,
    ),
    PlantedBug("files that arrive take the vote away", ((incoming, "newest_vote", _vote_of_sender),), 20, _sent_files),
)
