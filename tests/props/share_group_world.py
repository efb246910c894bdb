"""Members of a share group, an administrator, topics that come, grow and go, a log that is slow, fails and crashes, and
a share coordinator that is slow and fails: a model to be driven by one random source.

What holds is checked after every step: a state that is in use is reset by nobody but an administrator; only partitions
with state are assigned; a member that follows its answers is never fenced; what a successor reads is what its
predecessor had; what was deleted leaves no state. At rest every partition of a subscribed topic has a member.
"""

from collections import Counter
from random import Random

from group_bench import Stepper, Topics
from millstream.core.group.outputs import (
    AlterShareOffsets,
    Delete,
    DeleteShareOffsets,
    GroupSettings,
    Persisted,
    ShareHeartbeat,
    ShareSettings,
    StateAnswered,
    TopicDeleted,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareOffsetsTopic
from millstream.wire.messages.delete_share_group_state import DeleteShareGroupStateResponse
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.share_group_storage import ShareGroupStatePartitionMetadataKey
from millstream.wire.messages.share_state_results import StatePartitionResult, StateTopicResult

GROUP = "g"
SESSION_MS, BEAT_MS = 10_000, 1_000
NAMES = ("t", "u", "v")
REMOVED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
PASSING = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT}


def places(named) -> set[tuple[bytes, int]]:
    return {(topic_id, index) for topic_id, one in named.items() for index in one.partitions}


class State:
    """The state of a share partition at the share coordinator."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.in_use = False


class Member:
    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.names: list[str] = []
        self.has: set[tuple[bytes, int]] = set()
        self.waits: int | None = None
        self.beat_ms = 0


class World(Stepper):
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.topics = Topics(t=2)
        settings = GroupSettings(
            share=ShareSettings(
                session_timeout_ms=SESSION_MS, heartbeat_interval_ms=BEAT_MS, assignment_interval_ms=700, max_size=6
            )
        )
        super().__init__(settings, topics=self.topics)
        self.asks: list = []
        self.states: dict[tuple[bytes, int], State] = {}
        self.members = [Member(f"m{i}") for i in range(4)]
        self.tokens: dict[int, tuple[str, object]] = {}
        self.last_token = 0
        self.seen: Counter[str] = Counter()
        self.quiet = False

    # The coordinator

    def take(self, out) -> None:
        self.held += out.writes
        for write in out.writes:
            for key, value in write.records:
                if isinstance(key, ShareGroupStatePartitionMetadataKey) and value is not None:
                    self.about_to_delete({topic.topic_id for topic in value.deleting_topics})
        self.asks += out.asks
        for token, response in out.answers:
            kind, what = self.tokens.pop(token)  # KeyError: answered twice
            getattr(self, f"on_{kind}")(what, response)

    def about_to_delete(self, topic_ids: set[bytes]) -> None:
        """What an administrator lets go may be reset, even if its deletion fails."""
        for (topic_id, _), state in self.states.items():
            if topic_id in topic_ids:
                state.in_use = False

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

    def crash(self) -> None:
        """The coordinator dies: what was not durable is lost; what it asked for happens, or does not."""
        for ask in self.asks:
            if self.rng.random() < 0.5:
                self.carry_out(ask.request)
        self.asks.clear()
        self.tokens.clear()
        for member in self.members:
            member.waits = None
        before = self.coordinator.groups.get(GROUP)
        self.take_over()
        after = self.coordinator.groups.get(GROUP)
        self.seen["crashes"] += before is not None and after is not None

    # The share coordinator

    def carry_out(self, request):
        results = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                fails = not self.quiet and self.rng.random() < 0.1
                code = ErrorCode.REQUEST_TIMED_OUT if fails else ErrorCode.NONE
                if not fails or self.rng.random() < 0.5:  # what timed out may have happened
                    code = self.change((topic.topic_id, one.partition), request, one) or code
                partitions.append(StatePartitionResult(one.partition, code))
            results.append(StateTopicResult(topic.topic_id, partitions))
        if isinstance(request, InitializeShareGroupStateRequest):
            return InitializeShareGroupStateResponse(results)
        return DeleteShareGroupStateResponse(results)

    def change(self, place, request, one) -> ErrorCode:
        known = self.states.get(place)
        if not isinstance(request, InitializeShareGroupStateRequest):
            self.states.pop(place, None)
            return ErrorCode.NONE
        if self.topics.by_id(place[0]) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known is not None and one.state_epoch < known.epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if known is not None and one.state_epoch == known.epoch and one.start_offset == -1:
            return ErrorCode.NONE
        if known is not None and one.start_offset == -1:
            assert not known.in_use, "a heartbeat reset a state that is in use"
        self.states[place] = State(one.state_epoch)
        return ErrorCode.NONE

    def reply(self) -> None:
        if self.asks:
            ask = self.asks.pop(self.rng.randrange(len(self.asks)))
            self.step(StateAnswered(ask, self.carry_out(ask.request)))

    # Members

    def beat(self, member: Member, epoch: int | None = None, names: list[str] | None = None) -> None:
        if member.waits is not None:
            return
        epoch = member.epoch if epoch is None else epoch
        if epoch == 0:
            names = member.names = names or sorted(self.rng.sample(NAMES, self.rng.randint(1, 2)))
            member.epoch = 0
        elif names is not None:
            member.names = names
        member.waits = self.token("beat", (member, epoch))
        member.beat_ms = self.ms
        request = ShareGroupHeartbeatRequest(GROUP, member.name, epoch, None, names)
        self.step(ShareHeartbeat(member.waits, request, "c", "/h"))

    def on_beat(self, what, response) -> None:
        member, epoch = what
        member.waits = None
        code = ErrorCode(response.error_code)
        if epoch == -1 or code in REMOVED:
            if code in REMOVED or code is ErrorCode.NONE:
                member.epoch, member.has = 0, set()
            return
        assert code in PASSING | {ErrorCode.NONE}, f"{member.name} at {epoch}: {code.name} {response.error_message}"
        if code is not ErrorCode.NONE:
            return
        assert not epoch or response.member_epoch >= member.epoch
        member.epoch = response.member_epoch
        if response.assignment is not None:
            parts = response.assignment.topic_partitions
            member.has = {(topic.topic_id, index) for topic in parts for index in topic.partitions}
        for place in member.has:
            if self.topics.by_id(place[0]) is not None:
                assert place in self.states, "a partition without state is assigned"
                self.states[place].in_use = True
                self.seen["assigned"] += 1

    # The administrator

    def alter(self) -> None:
        name = self.rng.choice(NAMES)
        topic = self.topics.by_name(name)
        partitions = [AlterShareOffsetsPartition(0, 7)]
        request = AlterShareGroupOffsetsRequest(GROUP, [AlterShareOffsetsTopic(name, partitions)])
        self.step(AlterShareOffsets(self.token("alter", topic), request))

    def on_alter(self, topic, response) -> None:
        if not response.error_code and topic is not None and not response.responses[0].partitions[0].error_code:
            assert self.topics.by_id(topic.topic_id) is None or (topic.topic_id, 0) in self.states
            self.seen["altered"] += 1

    def forget(self) -> None:
        request = DeleteShareGroupOffsetsRequest(GROUP, [DeleteShareOffsetsTopic(self.rng.choice(NAMES))])
        self.step(DeleteShareOffsets(self.token("forget", None), request))

    def on_forget(self, what, response) -> None:
        for one in response.responses:
            if not one.error_code:
                assert not any(place[0] == one.topic_id for place in self.states)
                self.seen["forgotten"] += 1

    def delete(self) -> None:
        self.step(Delete(self.token("delete", None), GROUP))

    def on_delete(self, what, response) -> None:
        if not response.error_code:
            assert not self.states, "a deleted group has left state"
            self.seen["deleted"] += 1

    def change_topics(self) -> None:
        name = self.rng.choice(NAMES)
        topic = self.topics.by_name(name)
        if topic is None:
            self.topics.put(name, self.rng.randint(1, 3))
        elif self.rng.random() < 0.5 and topic.partitions < 4:
            self.topics.grow(name)
        else:
            self.topics.delete(name)
            self.states = {place: state for place, state in self.states.items() if place[0] != topic.topic_id}
            self.step(TopicDeleted(name, topic.topic_id))

    # Running

    def act(self) -> None:
        rng = self.rng
        if rng.random() < 0.005:
            self.leave_alone()
        member = rng.choice(self.members)
        actions = {
            self.persist: 30,
            self.reply: 15,
            lambda: self.beat(member): 25,
            lambda: self.beat(member, -1) if member.epoch else None: 3,
            lambda: self.beat(member, 0) if member.epoch else None: 2,
            lambda: self.beat(member, names=[rng.choice(NAMES)]): 3,
            lambda: self.advance(rng.choice((1, 100, 600, 2_000))): 12,
            lambda: self.advance(SESSION_MS): 1,
            self.change_topics: 2,
            self.alter: 2,
            self.forget: 2,
            self.delete: 3,
            self.crash: 1,
        }
        rng.choices(list(actions), list(actions.values()))[0]()
        for late in self.members:
            if self.ms - late.beat_ms > SESSION_MS:
                late.has = set()  # its session has ended; it learns that with its next heartbeat

    def leave_alone(self) -> None:
        """All members leave; the administrator has the group for itself."""
        for member in self.members:
            if member.epoch:
                self.beat(member, -1)
        for _ in range(self.rng.randint(1, 40)):
            self.rng.choice(
                (self.persist, self.reply, self.persist, self.reply, self.alter, self.forget, self.delete)
            )()

    def rest(self) -> None:
        """Nothing fails from now on, and every member sends its heartbeats."""
        self.quiet = True
        for round_ in range(60):
            for member in self.members:
                self.beat(member)
            while self.held or self.asks:
                self.persist()
                self.reply()
            self.advance(BEAT_MS if round_ else 31_000)
        assert not self.tokens, "every request is answered"

    def check_at_rest(self) -> None:
        share = self.coordinator.groups[GROUP].share
        given = {place for member in self.members for place in member.has}
        wanted = {
            (topic.topic_id, index)
            for name, topic in self.topics.topics.items()
            if any(name in member.names for member in self.members)
            for index in range(topic.partitions)
        }
        assert given == wanted
        assert share.epoch == share.assignment_epoch
        states = share.states
        assert not wanted & (places(states.initializing) - places(states.initialized))
        other = self.successor().groups[GROUP].share
        assert (other.members, other.targets, other.states, other.epoch) == (
            share.members,
            share.targets,
            share.states,
            share.epoch,
        )
        writes = len(self.log)
        for member in self.members:
            self.beat(member)
        assert len(self.log) == writes
        assert not self.held, "at rest nothing is written"
