"""Clients, an administrator, a log that is slow, fails and crashes, a coordinator between them: a model to be driven.

What holds is checked after every step: bookkeeping of the group, one assignment per generation and one owner per
partition in it (D1), stale commits fenced (D1), commits that were acknowledged never lost or overtaken (D2), what was
said to be deleted never back, and nobody back who left last and was told so.
"""

from dataclasses import dataclass, field
from itertools import count

from group_bench import Stepper
from millstream.core.group.outputs import (
    Commit,
    Delete,
    DeleteOffsets,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Persisted,
    Sync,
)
from millstream.core.group.state import GroupState
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS, REBALANCE_MS, DELAY_MS = 6_000, 9_000, 1_000
PARTITIONS = 6
GROUP = "g"


@dataclass
class Client:
    """A consumer. ``waiting`` is the token of its request, ``step`` what it does next."""

    name: str
    instance: str | None
    old: bool
    member_id: str = ""
    generation: int = -1
    step: str = "join"
    waiting: int | None = None
    request: str = ""
    leader_of: list[str] | None = None
    assignment: bytes | None = None
    protocols: tuple[str, ...] = ("range",)
    version: int = 0
    leaves_last: bool = False

    def reset(self) -> None:
        self.member_id, self.generation, self.step = "", -1, "join"
        self.waiting, self.leader_of, self.assignment = None, None, None


@dataclass
class World(Stepper):
    clients: list[Client]
    settings: GroupSettings = field(
        default_factory=lambda: GroupSettings(
            initial_rebalance_delay_ms=DELAY_MS, new_member_join_timeout_ms=20_000, offsets_retention_ms=10**12
        )
    )

    def __post_init__(self) -> None:
        super().__init__(self.settings)
        self.tokens = count(1)
        self.suffixes = count(1)
        self.offsets = count(1)
        self.open: dict[int, Client | None] = {}
        self.assigned: dict[int, dict[str, bytes]] = {}  # generation -> member id -> assignment that was told
        self.commits: dict[int, tuple[int, int]] = {}  # token -> (partition, offset)
        self.acked: dict[int, int] = {}  # partition -> last acknowledged offset
        self.seen_generation = 0
        self.seen_group = None
        self.identities: list[tuple[str, int, str | None]] = []
        self.deletions: dict[int, tuple[list[int], int, dict[int, int]]] = {}
        """Token → partitions, the number that the next offset had then, and what was acknowledged before."""
        self.deleted_below: dict[int, int] = {}  # partition -> offsets below it are gone for good
        self.gone: set[str] = set()  # left last, and told so

    # The coordinator and its log

    def take(self, out) -> None:
        self.held += out.writes
        for token, response in out.answers:
            client = self.open.pop(token)  # KeyError: answered twice
            self.settle(token, response)
            self.settle_deletion(token, response)
            if client is not None and client.waiting == token:
                client.waiting = None
                getattr(self, f"on_{client.request}")(client, response)
        self.check()

    def persist(self, writes: int, error: ErrorCode = ErrorCode.NONE) -> None:
        for _ in range(min(writes, len(self.held))):
            write = self.held.pop(0)
            if error is ErrorCode.NONE:
                self.log += write.records
            self.step(Persisted(write.receipt, error))

    def crash(self) -> None:
        """The coordinator dies; what was not durable is gone, and so is every connection."""
        self.open.clear()
        self.commits.clear()
        self.deletions.clear()
        for client in self.clients:
            if client.waiting is not None:
                client.waiting = None  # the client sends its request again
                if client.request == "leave":
                    client.reset()
        self.take_over()
        durable = self.durable_offsets()
        for partition, offset in self.acked.items():
            assert durable.get(partition, -1) >= offset, "an acknowledged commit is lost"

        self.check_gone()

    def check_gone(self) -> None:
        """What is gone for good is not there."""
        for partition, offset in self.durable_offsets().items():
            assert offset >= self.deleted_below.get(partition, 0), "a deleted offset is back"
        group = self.coordinator.groups.get(GROUP)
        assert group is None or not self.gone & set(group.members), "a member that left last is back"

    def durable_offsets(self) -> dict[int, int]:
        group = self.coordinator.groups.get(GROUP)
        return {} if group is None else {p: o.offset for _, p, o in group.offsets}

    # What must hold

    def check(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        counts = self.coordinator.counts
        assert sum(counts.states.values()) == len(self.coordinator.groups)
        if group is None:
            return
        if group.generation == 0:
            self.seen_generation = 0  # forgotten, but for a commit on its way
        members = group.members
        assert counts.members == len(members)
        assert group.rebalance.awaiting_join == sum(m.join_token is not None for m in members.values())
        assert (group.leader_id is None) == (not members)
        assert group.leader_id is None or group.leader_id in members
        assert group.statics == {m.instance_id: i for i, m in members.items() if m.instance_id is not None}
        supporters: dict[str, int] = {}
        for member in members.values():
            for name, _ in member.protocols:
                supporters[name] = supporters.get(name, 0) + 1
        assert group.assignors.supporters == supporters
        assert group.rebalance.pending_syncs <= set(members)
        assert not set(group.rebalance.pending_joins) & set(members)
        if group.state is GroupState.EMPTY:
            assert not members
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            assert all(m.sync_token is None for m in members.values())
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert group.rebalance.sync_deadline.at_us or not group.rebalance.pending_syncs
        if group.state is GroupState.PREPARING_REBALANCE:
            assert group.rebalance.join_deadline.at_us, "a gathering without an end"
        for member in members.values():
            assert member.session.at_us or member.satisfies_heartbeat, "a member that can never fail"

    def settle(self, token: int, response) -> None:
        commit = self.commits.pop(token, None)
        if commit is not None and response.topics[0].partitions[0].error_code == 0:
            partition, offset = commit
            assert offset > self.acked.get(partition, 0), "answers of commits out of the order of the log"
            assert self.durable_offsets()[partition] >= offset
            self.keep(partition, offset)

    def saw_assignment(self, generation: int, member_id: str, assignment: bytes) -> None:
        told = self.assigned.setdefault(generation, {})
        assert told.get(member_id, assignment) == assignment, "two assignments for one member in one generation"
        told[member_id] = assignment
        owned = [p for member, each in self.current(generation).items() for p in each]
        assert len(owned) == len(set(owned)), "a partition with two owners in one generation"

    def current(self, generation: int) -> dict[str, bytes]:
        """Assignments told in ``generation``, without former incarnations of static members."""
        group = self.coordinator.groups[GROUP]
        return {m: a for m, a in self.assigned[generation].items() if m in group.members}

    # The administrator

    def delete_group(self) -> None:
        token = next(self.tokens)
        self.delete(token, list(range(PARTITIONS)), Delete(token, GROUP))

    def delete_offset(self, partition: int) -> None:
        token = next(self.tokens)
        asked = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
        self.delete(token, [partition], DeleteOffsets(token, OffsetDeleteRequest(group_id=GROUP, topics=[asked])))

    def delete(self, token: int, partitions: list[int], given) -> None:
        """From now on offsets that were acknowledged before may be gone; when it is answered, they are."""
        before = {partition: self.acked.pop(partition) for partition in partitions if partition in self.acked}
        self.deletions[token] = (partitions, next(self.offsets), before)
        self.open[token] = None
        group = self.coordinator.groups.get(GROUP)
        may_be_refused = group is not None and not group.is_empty
        self.step(given)
        assert token in self.deletions or may_be_refused or not before, "deleted before that is durable"

    def keep(self, partition: int, offset: int) -> None:
        """An acknowledged offset has to stay, unless it was deleted or is about to be."""
        below = max((below for p, below, _ in self.deletions.values() if partition in p), default=0)
        if offset >= max(below, self.deleted_below.get(partition, 0), self.acked.get(partition, 0)):
            self.acked[partition] = offset

    def settle_deletion(self, token: int, response) -> None:
        if token not in self.deletions:
            return
        partitions, below, before = self.deletions.pop(token)
        error = response.error_code or next(
            (p.error_code for t in getattr(response, "topics", ()) for p in t.partitions), 0
        )
        group = self.coordinator.groups.get(GROUP)
        if error == ErrorCode.NONE:
            for partition in partitions:
                self.deleted_below[partition] = max(below, self.deleted_below.get(partition, 0))
            self.check_gone()
        elif error == ErrorCode.GROUP_ID_NOT_FOUND:
            assert group is None
        elif error in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            for partition, offset in before.items():
                self.keep(partition, offset)
        else:
            assert error == ErrorCode.COORDINATOR_NOT_AVAILABLE

    # Clients

    def send(self, client: Client | None, request: str, make) -> int:
        token = next(self.tokens)
        self.open[token] = client
        if client is not None:
            client.waiting, client.request = token, request
        self.step(make(token))
        return token

    def act(self, client: Client, choice: int) -> None:
        if client.waiting is not None:
            return
        if client.step == "join":
            self.join(client)
        elif client.step == "sync":
            self.sync(client)
        elif choice % 3 == 0:
            self.commit(client, choice)
        else:
            self.beat(client)

    def join(self, client: Client) -> None:
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=n, metadata=bytes([client.version])) for n in client.protocols],
        )
        version = 3 if client.old else 9
        self.send(client, "join", lambda t: Join(t, request, version, client.name, "/h", str(next(self.suffixes))))

    def on_join(self, client: Client, response) -> None:
        error = response.error_code
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif error == ErrorCode.NONE:
            group = self.coordinator.groups[GROUP]
            assert response.generation_id == group.generation
            if group is not self.seen_group:  # forgotten when it was empty, and made anew
                self.seen_group, self.seen_generation = group, 0
            assert response.generation_id >= self.seen_generation, "generations went back"
            self.seen_generation = response.generation_id
            client.member_id, client.generation = response.member_id, response.generation_id
            client.step = "sync"
            leads = response.leader == response.member_id and not response.skip_assignment
            client.leader_of = [m.member_id for m in response.members] if leads else None
            if leads:
                assert client.leader_of == list(group.members)
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        elif error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            # Of a loaded member only the assignor of its generation is known: be able to use any.
            client.reset()
            client.protocols = ("range", "sticky")
        else:
            client.reset()

    def sync(self, client: Client) -> None:
        assignments = []
        if client.leader_of:
            parts = [bytes(range(i, PARTITIONS, len(client.leader_of))) for i in range(len(client.leader_of))]
            # A leader may change its mind between two tries of one generation.
            first = next(self.offsets) % len(parts)
            parts = parts[first:] + parts[:first]
            assignments = [
                SyncGroupRequestAssignment(member_id=m, assignment=p)
                for m, p in zip(client.leader_of, parts, strict=True)
            ]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
            protocol_type="consumer",
            protocol_name=self.coordinator.groups[GROUP].assignors.chosen
            if GROUP in self.coordinator.groups
            else "range",
            assignments=assignments,
        )
        self.send(client, "sync", lambda t: Sync(t, request, 4 if request.protocol_name is None else 5))

    def on_sync(self, client: Client, response) -> None:
        if response.error_code == ErrorCode.NONE:
            client.step, client.assignment = "work", response.assignment
            self.identities.append((client.member_id, client.generation, client.instance))
            self.saw_assignment(client.generation, client.member_id, response.assignment)
        elif response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            client.step = "join"
        else:
            client.reset()

    def beat(self, client: Client) -> None:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance,
        )
        self.send(client, "beat", lambda t: Heartbeat(t, request))

    def on_beat(self, client: Client, response) -> None:
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            client.step = "join"
        elif response.error_code:
            client.reset()

    def commit(self, client: Client, choice: int) -> None:
        partition = client.assignment[choice % len(client.assignment)] if client.assignment else choice % PARTITIONS
        self.send_commit(client, (client.member_id, client.generation, client.instance), partition)

    def zombie(self, choice: int) -> None:
        """A former incarnation of somebody wakes up and commits."""
        if self.identities:
            self.send_commit(None, self.identities[choice % len(self.identities)], choice % PARTITIONS)

    def outsider(self, choice: int) -> None:
        """A consumer that is no member commits."""
        self.send_commit(None, ("", -1, None), choice % PARTITIONS)

    def send_commit(self, client: Client | None, identity: tuple[str, int, str | None], partition: int) -> None:
        """Commit; the coordinator must only take it from a current member in the current generation."""
        member_id, generation, instance = identity
        group = self.coordinator.groups.get(GROUP)
        fresh = (
            group is not None
            and group.generation == generation
            and member_id in group.members
            and group.members[member_id].instance_id == instance
            and group.state is not GroupState.COMPLETING_REBALANCE
        ) or (generation < 0 and (group is None or group.is_empty))
        offset = next(self.offsets)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
                )
            ],
        )
        before = len(self.held)
        token = next(self.tokens)
        self.commits[token] = (partition, offset)
        self.open[token] = client
        if client is not None:
            client.waiting, client.request = token, "commit"
        self.step(Commit(token, request, 9))
        assert (len(self.held) > before) == fresh, "a stale commit was taken, or a fresh one refused"

    def on_commit(self, client: Client, response) -> None:
        error = response.topics[0].partitions[0].error_code
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            client.step = "join"
        elif error not in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            client.reset()

    def leave(self, client: Client) -> None:
        if client.waiting is None and client.member_id:
            who = MemberIdentity(member_id=client.member_id, group_instance_id=client.instance)
            request = LeaveGroupRequest(group_id=GROUP, members=[who])
            client.leaves_last = False
            group = self.coordinator.groups.get(GROUP)
            alone = group is not None and set(group.members) == {client.member_id}
            self.send(client, "leave", lambda t: Leave(t, request, 5))
            # Else the group is still gathering, and nothing is written.
            client.leaves_last = alone and group.is_empty
            assert client.waiting is not None or not client.leaves_last, "told that it left before that is durable"

    def on_leave(self, client: Client, response) -> None:
        if client.leaves_last and not (response.error_code or response.members[0].error_code):
            self.gone.add(client.member_id)
        client.reset()
