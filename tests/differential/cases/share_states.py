"""The APIs by which brokers of Kafka keep the state of share partitions (83 to 87)."""

from msgspec.structs import replace

from differential.good_share import delete_state, initialise, read_state, summary, write_state
from differential.table import case
from differential.talk import Talk
from millstream.wire.messages.delete_share_group_state import DeleteShareGroupStateRequest, DeleteStateTopic
from millstream.wire.messages.initialize_share_group_state import InitializeShareGroupStateRequest, InitializeStateTopic
from millstream.wire.messages.read_share_group_state import ReadShareGroupStateRequest, StateBatch
from millstream.wire.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest
from millstream.wire.messages.write_share_group_state import WriteShareGroupStateRequest, WriteStateTopic


def made(t: Talk, **options: int) -> bytes:
    """The id of a topic whose partition 0 has a state."""
    topic_id = t.topic().id
    t.fence()
    answer = t.quiet(initialise(t, topic_id, **options))
    assert not answer.results[0].partitions[0].error_code, answer
    return topic_id


def look(t: Talk, topic_id: bytes) -> None:
    t.look(read_state(t, topic_id))
    t.look(summary(t, topic_id))


@case("a state", InitializeShareGroupStateRequest)
def _(t: Talk) -> None:
    topic_id = t.topic().id
    t.fence()
    t.ask(initialise(t, topic_id, start=-1))
    look(t, topic_id)
    t.ask(initialise(t, topic_id, epoch=1, start=7))
    t.ask(initialise(t, topic_id, epoch=0, start=8))
    look(t, topic_id)
    t.ask(initialise(t, topic_id, epoch=3, start=9))
    look(t, topic_id)


for _what, _fields in {
    "a negative epoch": {"epoch": -1},
    "a start of -1": {"start": -1},
    "a start of -2": {"start": -2},
}.items():

    @case(_what, InitializeShareGroupStateRequest)
    def _(t: Talk, fields: dict[str, int] = _fields) -> None:
        topic_id = t.topic().id
        t.fence()
        t.ask(initialise(t, topic_id, **fields))
        t.look(summary(t, topic_id))


for _what, _ask in {
    "read": read_state,
    "summary": summary,
    "write": write_state,
    "delete": delete_state,
    "initialise": initialise,
}.items():
    _api = {
        "read": ReadShareGroupStateRequest,
        "summary": ReadShareGroupStateSummaryRequest,
        "write": WriteShareGroupStateRequest,
        "delete": DeleteShareGroupStateRequest,
        "initialise": InitializeShareGroupStateRequest,
    }[_what]

    @case("no state", _api)
    def _(t: Talk, ask=_ask) -> None:
        topic_id = t.topic().id
        t.fence()
        t.ask(ask(t, topic_id))

    @case("an unknown topic id", _api)
    def _(t: Talk, ask=_ask) -> None:
        t.ask(ask(t, b"\7" * 16))

    @case("the zero topic id", _api)
    def _(t: Talk, ask=_ask) -> None:
        t.ask(ask(t, bytes(16)))

    @case("no group", _api)
    def _(t: Talk, ask=_ask) -> None:
        t.ask(replace(ask(t, t.topic().id), group_id=""))

    @case("no topics", _api)
    def _(t: Talk, ask=_ask) -> None:
        request = ask(t, t.topic().id)
        request.topics.clear()
        t.ask(request)

    @case("a topic without partitions", _api)
    def _(t: Talk, ask=_ask) -> None:
        request = ask(t, t.topic().id)
        request.topics[0].partitions.clear()
        t.ask(request)

    @case("a partition that is not there", _api)
    def _(t: Talk, ask=_ask) -> None:
        topic_id = t.topic().id
        t.fence()
        t.ask(ask(t, topic_id, 7))

    @case("a negative partition", _api)
    def _(t: Talk, ask=_ask) -> None:
        topic_id = t.topic().id
        t.fence()
        t.ask(ask(t, topic_id, -1))


for _epoch in (-1, 5, 3):

    @case(f"leader epoch {_epoch}", ReadShareGroupStateRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        topic_id = made(t)
        t.quiet(read_state(t, topic_id, leader_epoch=4))
        t.ask(read_state(t, topic_id, leader_epoch=epoch))
        t.look(summary(t, topic_id))

    @case(f"leader epoch {_epoch}", ReadShareGroupStateSummaryRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        topic_id = made(t)
        t.quiet(read_state(t, topic_id, leader_epoch=4))
        t.ask(summary(t, topic_id, leader_epoch=epoch))


for _what, _fields in {
    "nothing": {},
    "a start": {"start_offset": 5},
    "a start of -2": {"start_offset": -2},
    "an older state epoch": {"state_epoch": 1},
    "a newer state epoch": {"state_epoch": 3},
    "an older leader epoch": {"leader_epoch": 3},
    "a newer leader epoch": {"leader_epoch": 6},
    "a leader epoch of -1": {"leader_epoch": -1},
    "a count": {"delivery_complete_count": 3, "start_offset": 1},
    "a count of -2": {"delivery_complete_count": -2},
    "batches": {"state_batches": [StateBatch(10, 11, 2, 1), StateBatch(12, 14, 0, 2)]},
    "batches that overlap": {"state_batches": [StateBatch(10, 12, 2, 1), StateBatch(11, 14, 0, 2)]},
    "batches out of order": {"state_batches": [StateBatch(12, 14, 0, 2), StateBatch(10, 11, 2, 1)]},
    "a batch below the start": {"state_batches": [StateBatch(0, 2, 2, 1)], "start_offset": 2},
    "a batch that ends before it begins": {"state_batches": [StateBatch(14, 12, 0, 2)]},
    "a batch of state 1": {"state_batches": [StateBatch(10, 12, 1, 1)]},
    "a batch of state 3": {"state_batches": [StateBatch(10, 12, 3, 1)]},
    "a batch of state 4": {"state_batches": [StateBatch(10, 12, 4, 1)]},
    "a batch of state 5": {"state_batches": [StateBatch(10, 12, 5, 1)]},
    "a batch of state -1": {"state_batches": [StateBatch(10, 12, -1, 1)]},
    "a batch never delivered": {"state_batches": [StateBatch(10, 12, 0, 0)]},
    "a batch with a negative count": {"state_batches": [StateBatch(10, 12, 0, -1)]},
    "negative offsets": {"state_batches": [StateBatch(-3, -2, 0, 1)]},
}.items():

    @case(_what, WriteShareGroupStateRequest)
    def _(t: Talk, fields: dict[str, object] = _fields) -> None:
        topic_id = made(t, epoch=2)
        t.quiet(read_state(t, topic_id, leader_epoch=4))
        t.ask(write_state(t, topic_id, **{"state_epoch": 2, "leader_epoch": 4, **fields}))
        t.look(read_state(t, topic_id, leader_epoch=9))
        t.look(summary(t, topic_id))


@case("updates that are merged", WriteShareGroupStateRequest)
def _(t: Talk) -> None:
    topic_id = made(t)
    for batches in (
        [StateBatch(0, 9, 0, 1)],
        [StateBatch(2, 3, 2, 1), StateBatch(4, 5, 0, 2)],
        [StateBatch(4, 4, 2, 2), StateBatch(9, 12, 4, 1)],
        [StateBatch(0, 1, 2, 1)],
    ):
        t.ask(write_state(t, topic_id, state_batches=batches))
        t.look(read_state(t, topic_id))
    t.ask(write_state(t, topic_id, start_offset=4))
    look(t, topic_id)


@case("a state that is deleted", DeleteShareGroupStateRequest)
def _(t: Talk) -> None:
    topic_id = made(t, start=5)
    t.ask(delete_state(t, topic_id))
    look(t, topic_id)
    t.ask(delete_state(t, topic_id))
    t.look(initialise(t, topic_id, epoch=0, start=1))
    look(t, topic_id)


@case("several topics, some without a state", ReadShareGroupStateRequest)
def _(t: Talk) -> None:
    one, two = made(t, start=5), t.topic("b").id
    t.fence()
    request = read_state(t, one)
    request.topics.extend(read_state(t, two).topics)
    request.topics.extend(read_state(t, one, 3).topics)
    t.ask(request)


@case("a partition twice", InitializeShareGroupStateRequest)
def _(t: Talk) -> None:
    topic_id = t.topic().id
    t.fence()
    parts = [one for start in (3, 4) for one in initialise(t, topic_id, start=start).topics[0].partitions]
    t.ask(InitializeShareGroupStateRequest(t.name("g"), [InitializeStateTopic(topic_id, parts)]))
    t.look(summary(t, topic_id))


@case("a partition twice", WriteShareGroupStateRequest)
def _(t: Talk) -> None:
    topic_id = made(t)
    parts = [one for start in (3, 4) for one in write_state(t, topic_id, start_offset=start).topics[0].partitions]
    t.ask(WriteShareGroupStateRequest(t.name("g"), [WriteStateTopic(topic_id, parts)]))
    t.look(summary(t, topic_id))


@case("a partition twice", DeleteShareGroupStateRequest)
def _(t: Talk) -> None:
    topic_id = made(t)
    parts = [one for _ in range(2) for one in delete_state(t, topic_id).topics[0].partitions]
    t.ask(DeleteShareGroupStateRequest(t.name("g"), [DeleteStateTopic(topic_id, parts)]))
    t.look(summary(t, topic_id))
