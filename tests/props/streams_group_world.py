"""Members of a streams group in processes, topics that come, grow and go, and a log that is slow, fails and crashes: a
model to be driven by one random source.

What holds is checked after every step, on what the members themselves run: an active task has one member at most; a
process has a task once at most, in whatever kind; a member that follows its answers is never fenced, and may commit
with its epoch. A successor that reads the log has what its predecessor had. At rest every task runs, has its standby
tasks as far as there are processes, members have about equally many, and nothing more is written.
"""

from collections import Counter
from random import Random

from group_bench import Stepper, Topics
from millstream.core.group.outputs import (
    Commit,
    Delete,
    GroupSettings,
    Persisted,
    StreamsHeartbeat,
    StreamsSettings,
    TopicDeleted,
)
from millstream.core.group.streams_state.configured import Status
from millstream.core.group.streams_state.tasks import Task
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsCopartitionGroup,
    StreamsEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsSubtopology,
    StreamsTaskIds,
    StreamsTopicInfo,
    StreamsTopology,
)

GROUP = "g"
SESSION_MS, BEAT_MS = 10_000, 1_000
REMOVED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
PASSING = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
SOURCES = ("t", "u")

# t is read and repartitioned (0); u and the repartitioned t are joined, with a store (1).
TOPOLOGY = StreamsTopology(
    3,
    [
        StreamsSubtopology("0", ["t"], repartition_sink_topics=["r"]),
        StreamsSubtopology(
            "1",
            ["u"],
            state_changelog_topics=[StreamsTopicInfo("c")],
            repartition_source_topics=[StreamsTopicInfo("r")],
            copartition_groups=[StreamsCopartitionGroup([0], [], [0])],
        ),
    ],
)
Held = dict[str, set[Task]]
KINDS = ("active", "standby", "warmup")


def nothing() -> Held:
    return {kind: set() for kind in KINDS}


def listed(tasks: set[Task]) -> list[StreamsTaskIds]:
    found: dict[str, list[int]] = {}
    for task in sorted(tasks):
        found.setdefault(task.subtopology, []).append(task.partition)
    return [StreamsTaskIds(*one) for one in found.items()]


class Member:
    def __init__(self, name: str, process: str) -> None:
        self.name = name
        self.process = process
        self.epoch = 0
        self.runs = nothing()
        self.closing = nothing()
        """Tasks that it was told to give back and still runs."""
        self.said: Held | None = None
        """What it reported last; None if that may not have arrived."""
        self.waits: int | None = None
        self.beat_ms = 0
        self.endpoint_epoch = 0

    def owned(self) -> Held:
        return {kind: self.runs[kind] | self.closing[kind] for kind in KINDS}

    def forget(self) -> None:
        self.epoch, self.runs, self.closing, self.said = 0, nothing(), nothing(), None


class World(Stepper):
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.topics = Topics(t=2, u=3)
        self.standbys = self.rng.choice((0, 0, 1, 2))
        self.of_group: dict[str, int] = {"streams.num.standby.replicas": self.standbys}
        settings = GroupSettings(
            streams=StreamsSettings(
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=BEAT_MS,
                assignment_interval_ms=700,
                initial_rebalance_delay_ms=1_500,
                max_size=6,
                of_groups={GROUP: self.of_group},
            )
        )
        super().__init__(settings, topics=self.topics)
        self.members = [Member(f"m{i}", f"p{i % 3}") for i in range(5)]
        self.tokens: dict[int, tuple[str, object]] = {}
        self.last_token = 0
        self.seen: Counter[str] = Counter()
        self.quiet = False

    # The coordinator

    def take(self, out) -> None:
        self.held += out.writes
        for token, response in out.answers:
            kind, what = self.tokens.pop(token)  # KeyError: answered twice
            getattr(self, f"on_{kind}")(what, response)

    def token(self, kind: str, what: object) -> int:
        self.last_token += 1
        self.tokens[self.last_token] = kind, what
        return self.last_token

    def persist(self) -> None:
        if self.held:
            write = self.held.pop(0)
            fails = not self.quiet and self.rng.random() < 0.1
            if not fails:
                self.log += write.records
            self.step(Persisted(write.receipt, ErrorCode.NOT_ENOUGH_REPLICAS if fails else ErrorCode.NONE))
            if not self.held:
                self.check_successor()

    def check_successor(self) -> None:
        """Nothing is in flight to the log: it has the whole truth."""
        ours, theirs = (one.groups.get(GROUP) for one in (self.coordinator, self.successor()))
        assert (ours is None) == (theirs is None)
        if ours is None:
            return
        ours, theirs = ours.streams, theirs.streams
        assert (ours is None) == (theirs is None)
        if ours is not None:
            for what in ("metadata", "assignment", "topology", "members", "targets", "behind", "state"):
                assert getattr(ours, what) == getattr(theirs, what), what
            for what in ("active", "standby", "warmup"):
                assert getattr(ours.holders, what) == getattr(theirs.holders, what), what

    def crash(self) -> None:
        """The coordinator dies: some of what was being written is durable, though nobody was told, the rest is lost."""
        for write in self.held[: self.rng.randint(0, len(self.held))]:
            self.log += write.records
        self.tokens.clear()
        for member in self.members:
            member.waits = member.said = None
        before = self.coordinator.groups.get(GROUP)
        self.take_over()
        after = self.coordinator.groups.get(GROUP)
        self.seen["crashes"] += before is not None and after is not None
        for member in self.members:
            member.beat_ms = self.ms if member.epoch else member.beat_ms

    # Members

    def beat(self, member: Member, epoch: int | None = None) -> None:
        if member.waits is not None:
            return
        epoch = member.epoch if epoch is None else epoch
        joins = epoch == 0
        if joins:
            member.forget()
        owned = member.owned()
        says = joins or member.said != owned or self.rng.random() < 0.1
        member.said = {kind: set(tasks) for kind, tasks in owned.items()}
        member.waits = self.token("beat", (member, epoch))
        member.beat_ms = self.ms
        self.step(
            StreamsHeartbeat(
                member.waits,
                StreamsGroupHeartbeatRequest(
                    GROUP,
                    member.name,
                    epoch,
                    member.endpoint_epoch,
                    rebalance_timeout_ms=6_000 if joins else -1,
                    topology=TOPOLOGY if joins else None,
                    active_tasks=listed(owned["active"]) if says else None,
                    standby_tasks=listed(owned["standby"]) if says else None,
                    warmup_tasks=listed(owned["warmup"]) if says else None,
                    process_id=member.process if joins else None,
                    user_endpoint=StreamsEndpoint(member.process, 1) if joins and member.name != "m0" else None,
                ),
                "c",
                "/h",
            )
        )

    def on_beat(self, what, beaten) -> None:
        member, epoch = what
        member.waits = None
        response = beaten.response
        code = ErrorCode(response.error_code)
        if epoch == -1 or code in REMOVED:
            if code in REMOVED or code is ErrorCode.NONE:
                member.forget()
            return
        if code is not ErrorCode.NONE:
            assert code in PASSING, f"{member.name} at {epoch}: {code.name} {response.error_message}"
            member.said = None
            return
        assert not epoch or response.member_epoch >= member.epoch
        member.epoch = response.member_epoch
        member.endpoint_epoch = response.endpoint_information_epoch
        for status in response.status:
            self.seen[Status(status.status_code).name.lower()] += 1
        for topic in beaten.missing:
            if self.topics.by_name(topic.name) is None and (self.quiet or self.rng.random() < 0.5):
                self.topics.put(topic.name, topic.num_partitions)
        if response.active_tasks is not None:
            told = {
                kind: {Task(one.subtopology_id, index) for one in tasks for index in one.partitions}
                for kind, tasks in zip(
                    KINDS, (response.active_tasks, response.standby_tasks, response.warmup_tasks), strict=True
                )
            }
            for kind in KINDS:
                member.closing[kind] = (member.closing[kind] | member.runs[kind]) - told[kind]
            member.runs = told
            self.seen["assigned"] += len(told["active"])
            self.seen["copied"] += len(told["standby"])
        assert response.active_tasks is not None or epoch, "who joins is told its tasks"

    def close(self, member: Member) -> None:
        member.closing = nothing()

    def commit(self, member: Member) -> None:
        """A commit of what the member runs, with its epoch."""
        tasks = [task for task in member.runs["active"] if task.subtopology == "0"]
        if member.epoch > 0 and tasks and member.waits is None:
            partitions = [OffsetCommitRequestPartition(task.partition, 7) for task in tasks]
            topics = [OffsetCommitRequestTopic("t", partitions=partitions)]
            request = OffsetCommitRequest(GROUP, member.epoch, member.name, topics=topics)
            self.step(Commit(self.token("commit", member), request, 9))

    def on_commit(self, member, response) -> None:
        for topic in response.topics:
            for one in topic.partitions:
                allowed = {ErrorCode.NONE, *PASSING, *(REMOVED if self.ms - member.beat_ms >= SESSION_MS else ())}
                assert one.error_code in allowed | self._may_be_gone(member), ErrorCode(one.error_code).name
                self.seen["committed"] += one.error_code == ErrorCode.NONE

    def _may_be_gone(self, member: Member) -> set[ErrorCode]:
        """A member that did not give tasks back in time was removed, and does not know it; one that has sent another
        request since may have left.
        """
        return REMOVED if any(member.closing.values()) or member.epoch == 0 or member.waits is not None else set()

    # The administrator, and the topics

    def delete(self) -> None:
        self.step(Delete(self.token("delete", None), GROUP))

    def on_delete(self, what, response) -> None:
        _ = what
        self.seen["deleted"] += not response.error_code

    def change_standbys(self) -> None:
        self.standbys = self.of_group["streams.num.standby.replicas"] = self.rng.randint(0, 2)

    def change_topics(self) -> None:
        name = self.rng.choice((*SOURCES, "r", "c"))
        topic = self.topics.by_name(name)
        if topic is None:
            if name in SOURCES:
                self.topics.put(name, self.rng.randint(1, 3))
        elif self.rng.random() < 0.5 and topic.partitions < 4:
            self.topics.grow(name)
        else:
            self.topics.delete(name)
            self.step(TopicDeleted(name, topic.topic_id))

    # Running

    def act(self) -> None:
        rng = self.rng
        if rng.random() < 0.004:
            self.leave_alone()
        member = rng.choice(self.members)
        actions = {
            self.persist: 30,
            lambda: self.beat(member): 30,
            lambda: self.beat(member, -1) if member.epoch else None: 2,
            lambda: self.beat(member, 0) if member.epoch else None: 1,
            lambda: self.close(member): 12,
            lambda: self.commit(member): 6,
            lambda: self.advance(rng.choice((1, 100, 600, 2_000))): 12,
            lambda: self.advance(SESSION_MS): 1,
            self.change_topics: 1,
            self.change_standbys: 1,
            self.delete: 1,
            self.crash: 1,
        }
        rng.choices(list(actions), list(actions.values()))[0]()
        for late in self.members:
            group = self.coordinator.groups.get(GROUP)
            streams = None if group is None else group.streams
            if late.epoch and (streams is None or late.name not in streams.members):
                late.forget()  # removed for its silence, or because it was slow; it learns that with its next heartbeat
        self.check()

    def check(self) -> None:
        active: Counter[Task] = Counter()
        in_process: Counter[tuple[str, Task]] = Counter()
        for member in self.members:
            owned = member.owned()
            active.update(owned["active"])
            for task in set().union(*owned.values()):
                in_process[member.process, task] += 1
        assert all(count == 1 for count in active.values()), f"two members run {active.most_common(1)}"
        assert all(count == 1 for count in in_process.values()), f"a process has {in_process.most_common(1)}"

    def leave_alone(self) -> None:
        """All members leave; the administrator has the group for itself."""
        for member in self.members:
            if member.epoch:
                self.beat(member, -1)
        for _ in range(self.rng.randint(1, 20)):
            self.rng.choice((self.persist, self.persist, self.delete))()

    def rest(self) -> None:
        """Nothing fails from now on, and every member sends its heartbeats."""
        self.quiet = True
        if self.rng.random() < 0.5:
            # Internal topics that are there fit: an administrator has seen to it.
            for name in ("r", "c"):
                self.topics.topics.pop(name, None)
        for name in ("r", "c"):
            topic, source = self.topics.by_name(name), self.topics.by_name("u")
            if topic is not None and (source is None or topic.partitions != source.partitions):
                del self.topics.topics[name]
        for name in SOURCES:
            if self.topics.by_name(name) is None:
                self.topics.put(name, 2)
        self.topics.revision += 1
        self.beats()
        self.check_at_rest()
        self.topics.grow("t")
        self.beats()
        self.check_at_rest()
        self.change_standbys()
        self.beats()

    def beats(self) -> None:
        """Every member sends heartbeats, until there is nothing left to do."""
        for _ in range(30):
            for member in self.members:
                self.close(member)
                self.beat(member)
            while self.held:
                self.persist()
            self.advance(BEAT_MS)
            self.check()
        assert not self.tokens, "every request is answered"

    def check_at_rest(self) -> None:
        streams = self.coordinator.groups[GROUP].streams
        reads = self.topics.by_name("t").partitions
        stores = self.topics.by_name("u").partitions
        wanted = {Task("0", index) for index in range(reads)} | {Task("1", index) for index in range(stores)}
        assert sorted(task for member in self.members for task in member.runs["active"]) == sorted(wanted)
        copies = Counter(task for member in self.members for task in member.runs["standby"])
        assert copies == Counter({Task("1", index): min(self.standbys, 2) for index in range(stores)}) - Counter()
        share = -(-len(wanted) // len(self.members))
        assert max(len(member.runs["active"]) for member in self.members) <= share
        assert streams.state.value == "Stable"
        assert streams.epoch == streams.assignment_epoch
        writes = len(self.log)
        for member in self.members:
            self.beat(member)
        assert len(self.log) == writes
        assert not self.held, "at rest nothing is written"
