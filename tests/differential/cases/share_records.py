"""ShareFetch and ShareAcknowledge: sessions, what is acquired, and what members say of it."""

from differential.good import alter_request, delete_request
from differential.good_admin import delete_records_request
from differential.good_share import MEMBER, OTHER, Place, Sharer, acknowledged, share_offsets, started
from differential.table import case
from differential.talk import Talk, Topic
from millstream.wire.messages.share_acknowledge import AcknowledgementBatch, ShareAcknowledgeRequest
from millstream.wire.messages.share_fetch import ShareFetchRequest
from waits import Patience

NOWHERE = Topic("nowhere", b"\7" * 16)
GROUP = 32
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


def began(t: Talk, *counts: int, partitions: int = 1) -> tuple[Sharer, Topic]:
    """A member of a group at the start of a filled topic."""
    topic = t.filled(*(counts or (5,)), partitions=partitions)
    return started(t, topic, *([0] * partitions)), topic


def holding(t: Talk, *counts: int) -> tuple[Sharer, Place]:
    """A member that holds all records of a partition."""
    member, topic = began(t, *counts)
    member.fetch((topic, 0), note=False)
    return member, (topic, 0)


def fetch_loaded(member: Sharer, place: Place, **options: object) -> None:
    """Fetches, and notes the first answer that names the partition: none does while its state is loaded."""
    patience = Patience()
    while True:
        answer = member.fetch(place, max_wait_ms=1000, **options)
        if answer is None or answer.error_code or answer.responses:
            return
        patience.check(f"{member.t.peer.name}: the state is not loaded")
        member.t.steps.pop()
        member.poll(epoch=-1, note=False)


# Sessions


@case("records, and then no more", ShareFetchRequest)
def _(t: Talk) -> None:
    member, topic = began(t)
    member.fetch((topic, 0))
    member.poll()
    member.poll((topic, 0))
    member.poll(epoch=-1)


@case("several partitions", ShareFetchRequest)
def _(t: Talk) -> None:
    member, topic = began(t, 2, 1, partitions=3)
    places = [(topic, index) for index in range(3)]
    got: dict[int, list[list[int]]] = {}
    answer = member.fetch(*places, note=False)
    while sum(one[1] - one[0] + 1 for each in got.values() for one in each) < 9:
        for one in (part for each in answer.responses for part in each.partitions):
            if one.acquired_records:
                held = got.setdefault(one.partition_index, [])
                held += [[each.first_offset, each.last_offset] for each in one.acquired_records]
        if sum(one[1] - one[0] + 1 for each in got.values() for one in each) < 9:
            answer = member.fetch(note=False)
    t.note("acquired", {str(index): [held[0][0], held[-1][1]] for index, held in sorted(got.items())})


for _what, _epoch in (("5", 5), ("2^31 - 1", (1 << 31) - 1), ("-1", -1), ("-2", -2)):

    @case(f"without a session, with epoch {_what}", ShareFetchRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        member, topic = began(t)
        member.poll((topic, 0), epoch=epoch)

    @case(f"without a session, with epoch {_what}", ShareAcknowledgeRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        member, topic = began(t)
        member.acknowledge({(topic, 0): [acknowledged(0, 0, ACCEPT)]}, epoch=epoch)


for _what, _change in {
    "no group": {"group_id": None},
    "an empty group": {"group_id": ""},
    "no member": {"member_id": None},
    "an empty member": {"member_id": ""},
    "a member of 36 characters": {"member_id": "m" * 36},
    "a member of 37 characters": {"member_id": "m" * 37},
    "a member id that is no uuid": {"member_id": "m"},
}.items():

    @case(_what, ShareFetchRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        member, topic = began(t)
        member.fetch((topic, 0), **change)

    @case(_what, ShareAcknowledgeRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        member, topic = began(t)
        member.acknowledge({(topic, 0): [acknowledged(0, 0, ACCEPT)]}, epoch=1, **change)


for _what, _epoch in (("the epoch before", 0), ("the same epoch", 1), ("an epoch to come", 3), ("epoch -2", -2)):

    @case(f"a session with {_what}", ShareFetchRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        member, place = holding(t)
        member.poll(note=False)
        member.poll(place, epoch=epoch)

    @case(f"a session with {_what}", ShareAcknowledgeRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        member, place = holding(t)
        member.poll(note=False)
        member.acknowledge({place: [acknowledged(0, 0, ACCEPT)]}, epoch=epoch)


@case("a session of another member", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    Sharer(t, OTHER).poll(place, epoch=1)
    Sharer(t, MEMBER, "other").poll(place, epoch=1)
    member.poll()


@case("a session over another connection", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    answer = t.ask(member.fetch_request(max_wait_ms=0), line=t.open())
    assert answer is not None
    t.ask(member.acknowledge_request({place: [acknowledged(0, 4, ACCEPT)]}, epoch=member.epoch + 1), line=t.open())


@case("a session that ends gives its records back", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.poll(epoch=-1)
    Sharer(t, OTHER).fetch(place)


@case("a session that begins anew", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.poll(place, epoch=0)
    member.acknowledge({place: [acknowledged(0, 1, ACCEPT)]})
    member.poll(epoch=-1)
    Sharer(t, OTHER).fetch(place)


@case("acknowledgements at the start of a session", ShareFetchRequest)
def _(t: Talk) -> None:
    member, topic = began(t)
    member.poll(said={(topic, 0): [acknowledged(0, 0, ACCEPT)]}, epoch=0)


@case("a session without partitions", ShareFetchRequest)
def _(t: Talk) -> None:
    member, topic = began(t)
    member.poll()
    member.poll()
    member.fetch((topic, 0))


@case("partitions that are forgotten", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.poll(forget=[place])
    member.acknowledge({place: [acknowledged(0, 4, RELEASE)]})
    member.poll()
    member.poll(forget=[place, (NOWHERE, 0)])
    member.fetch(place)


@case("a partition that is added and forgotten", ShareFetchRequest)
def _(t: Talk) -> None:
    member, topic = began(t)
    member.fetch((topic, 0), forget=[(topic, 0)], max_wait_ms=3000)
    member.poll((topic, 0), forget=[(topic, 0)])


# Places that are not there


@case("an unknown topic id", ShareFetchRequest)
def _(t: Talk) -> None:
    member, _ = began(t)
    member.poll((NOWHERE, 0))


@case("an unknown topic id beside a topic", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.poll((NOWHERE, 0), said={place: [acknowledged(0, 0, ACCEPT)]})


@case("the zero topic id", ShareFetchRequest)
def _(t: Talk) -> None:
    member, _ = began(t)
    member.poll((Topic("", bytes(16)), 0))


for _partition in (1, -1):

    @case(f"partition {_partition} of one", ShareFetchRequest)
    def _(t: Talk, partition: int = _partition) -> None:
        member, topic = began(t)
        member.poll((topic, partition))


@case("a topic that is deleted under a session", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    t.quiet(delete_request(place[0].name))
    t.fence()
    member.acknowledge({place: [acknowledged(0, 0, ACCEPT)]})


@case("a partition whose state is not there", ShareFetchRequest)
def _(t: Talk) -> None:
    topic = t.filled(3)
    t.fence()
    Sharer(t).fetch((topic, 0), max_wait_ms=2000)


# Limits


for _what, _options in {
    "two records": {"max_records": 2},
    "a batch of 2": {"batch_size": 2},
    "a batch of 0": {"batch_size": 0},
    "one byte": {"max_bytes": 1},
    "at least 2^31 - 1 bytes": {"min_bytes": (1 << 31) - 1},
}.items():

    @case(f"for {_what}", ShareFetchRequest)
    def _(t: Talk, options: dict[str, object] = _options) -> None:
        member, topic = began(t, 3, 2)
        fetch_loaded(member, (topic, 0), **options)


for _what, _options in {
    "no records": {"max_records": 0},
    "-1 records": {"max_records": -1},
    "no bytes": {"max_bytes": 0},
    "-1 bytes": {"max_bytes": -1},
}.items():

    @case(f"for {_what}", ShareFetchRequest)
    def _(t: Talk, options: dict[str, object] = _options) -> None:
        member, topic = began(t, 3, 2)
        member.fetch((topic, 0), max_wait_ms=1000, **options)


for _mode in (0, 1, 2, -1):
    for _records in (1, 4):

        @case(f"{_records} records in acquire mode {_mode}", ShareFetchRequest, [2])
        def _(t: Talk, mode: int = _mode, records: int = _records) -> None:
            member, topic = began(t, 3, 2)
            answer = member.fetch((topic, 0), share_acquire_mode=mode, max_records=records)
            if answer is not None and not answer.error_code:
                member.poll(share_acquire_mode=mode, max_records=records)


@case("batches that are larger than the bytes asked for", ShareFetchRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    for number in range(3):
        t.produce(topic, 0, 1, value=bytes([97 + number]) * 100_000)
    member = started(t, topic, 0)
    member.fetch((topic, 0), max_bytes=100)
    member.fetch(max_bytes=100)


# Acknowledgements

_BATCHES: dict[str, list[AcknowledgementBatch]] = {
    "all": [acknowledged(0, 4, ACCEPT)],
    "some": [acknowledged(1, 2, ACCEPT)],
    "each with a type": [acknowledged(0, 4, ACCEPT, GAP, REJECT, GAP, ACCEPT)],
    "a type for each of fewer": [acknowledged(0, 4, ACCEPT, RELEASE)],
    "more types than records": [acknowledged(0, 1, ACCEPT, RELEASE, REJECT)],
    "no type": [acknowledged(0, 4)],
    "type 5": [acknowledged(0, 4, 5)],
    "type -1": [acknowledged(0, 4, -1)],
    "a renewal without the flag": [acknowledged(0, 4, RENEW)],
    "a batch twice": [acknowledged(0, 1, ACCEPT), acknowledged(0, 1, ACCEPT)],
    "batches that overlap": [acknowledged(0, 2, ACCEPT), acknowledged(2, 4, ACCEPT)],
    "batches out of order": [acknowledged(3, 4, ACCEPT), acknowledged(0, 1, ACCEPT)],
    "batches that leave some out": [acknowledged(0, 0, ACCEPT), acknowledged(4, 4, ACCEPT)],
    "a batch that ends before it begins": [acknowledged(3, 2, ACCEPT)],
    "negative offsets": [acknowledged(-2, -1, ACCEPT)],
    "more than it holds": [acknowledged(0, 9, ACCEPT)],
    "what is beyond": [acknowledged(10, 11, ACCEPT)],
    "the end and what is beyond": [acknowledged(4, 5, ACCEPT)],
    "2^62": [acknowledged(0, 1 << 62, ACCEPT)],
    "nothing": [],
}

for _what, _batches in _BATCHES.items():

    @case(f"acknowledging {_what}", ShareAcknowledgeRequest)
    def _(t: Talk, batches: list[AcknowledgementBatch] = _batches) -> None:
        member, place = holding(t)
        member.acknowledge({place: batches})
        t.look(share_offsets(t, place[0]))

    @case(f"acknowledging {_what}", ShareFetchRequest)
    def _(t: Talk, batches: list[AcknowledgementBatch] = _batches) -> None:
        member, place = holding(t)
        member.poll(said={place: batches})
        t.look(share_offsets(t, place[0]))


@case("twice", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.acknowledge({place: [acknowledged(0, 1, ACCEPT)]})
    member.acknowledge({place: [acknowledged(0, 1, ACCEPT)]})
    member.acknowledge({place: [acknowledged(1, 2, ACCEPT)]})
    member.acknowledge({place: [acknowledged(4, 4, ACCEPT)]})
    member.acknowledge({place: [acknowledged(4, 4, ACCEPT)]})
    member.acknowledge({place: [acknowledged(3, 4, RELEASE)]})


@case("what was given back", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.acknowledge({place: [acknowledged(0, 4, RELEASE)]})
    member.acknowledge({place: [acknowledged(0, 4, ACCEPT)]})
    member.fetch()
    member.acknowledge({place: [acknowledged(0, 4, ACCEPT)]})


@case("what another member holds", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    other = Sharer(t, OTHER)
    other.poll(place)
    other.acknowledge({place: [acknowledged(0, 4, ACCEPT)]})
    other.acknowledge({place: [acknowledged(0, 1, RELEASE)]})
    member.acknowledge({place: [acknowledged(0, 4, ACCEPT)]})


@case("until the count of deliveries is reached", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t, 1)
    for _ in range(4):
        member.acknowledge({place: [acknowledged(0, 0, RELEASE)]}, note=False)
        member.fetch()
    member.acknowledge({place: [acknowledged(0, 0, RELEASE)]})
    member.poll()
    t.look(share_offsets(t, place[0]))


@case("the last request of a session", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.acknowledge({place: [acknowledged(0, 1, ACCEPT)]}, epoch=-1)
    member.poll(place, epoch=3)
    Sharer(t, OTHER).fetch(place)


@case("the last request of a session with a wrong partition", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.acknowledge({place: [acknowledged(0, 1, ACCEPT)], (place[0], 7): [acknowledged(0, 1, ACCEPT)]}, epoch=-1)
    Sharer(t, OTHER).fetch(place)


@case("the last request of a session", ShareFetchRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    member.poll(said={place: [acknowledged(0, 1, ACCEPT)]}, epoch=-1)
    Sharer(t, OTHER).fetch(place)


@case("places that are not there", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, (topic, _) = holding(t)
    member.acknowledge({(NOWHERE, 0): [acknowledged(0, 0, ACCEPT)]})
    member.acknowledge({(topic, 1): [acknowledged(0, 0, ACCEPT)]})
    member.acknowledge({(topic, -1): [acknowledged(0, 0, ACCEPT)]})
    member.acknowledge({(Topic("", bytes(16)), 0): [acknowledged(0, 0, ACCEPT)]})


@case("a partition that is not in the session", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t)
    other = t.filled(2, label="b")
    member.acknowledge({(other, 0): [acknowledged(0, 0, ACCEPT)]})
    member.acknowledge({place: [acknowledged(0, 0, ACCEPT)], (other, 0): [acknowledged(0, 0, ACCEPT)]})


# Renewing (KIP-1222)


def _renewing(member: Sharer, batches: list[AcknowledgementBatch], place: Place, **options: object) -> None:
    none = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "batch_size": 0}
    member.fetch(said={place: batches}, is_renew_ack=True, **{**none, **options})


for _what, _batches in {
    "all": [acknowledged(0, 4, RENEW)],
    "some, accepting others": [acknowledged(0, 1, ACCEPT), acknowledged(2, 4, RENEW)],
    "in a list of types": [acknowledged(0, 4, ACCEPT, RENEW, RENEW, RELEASE, REJECT)],
    "nothing": [acknowledged(0, 4, ACCEPT)],
    "what it does not hold": [acknowledged(4, 6, RENEW)],
}.items():

    @case(f"renewing {_what}", ShareAcknowledgeRequest, [2])
    def _(t: Talk, batches: list[AcknowledgementBatch] = _batches) -> None:
        member, place = holding(t)
        member.acknowledge({place: batches}, is_renew_ack=True)
        t.look(share_offsets(t, place[0]))
        member.acknowledge({place: [acknowledged(2, 2, ACCEPT)]})

    @case(f"renewing {_what}", ShareFetchRequest, [2])
    def _(t: Talk, batches: list[AcknowledgementBatch] = _batches) -> None:
        member, place = holding(t)
        _renewing(member, batches, place)
        member.poll()


for _name in ("max_wait_ms", "min_bytes", "max_bytes", "max_records", "batch_size"):

    @case(f"renewing with {_name.replace('_', '.')}", ShareFetchRequest, [2])
    def _(t: Talk, name: str = _name) -> None:
        member, place = holding(t)
        _renewing(member, [acknowledged(0, 4, RENEW)], place, **{name: 1})
        member.poll()


@case("renewing where the group forbids it", ShareAcknowledgeRequest, [2])
def _(t: Talk) -> None:
    t.quiet(alter_request(t.name("g"), ("share.renew.acknowledge.enable", "false"), kind=GROUP))
    member, place = holding(t)
    member.acknowledge({place: [acknowledged(0, 4, RENEW)]}, is_renew_ack=True)


# The log moves


@case("records that are deleted", ShareFetchRequest)
def _(t: Talk) -> None:
    member, topic = began(t, 3, 2)
    t.quiet(delete_records_request(topic.name, 3))
    member.fetch((topic, 0))
    t.look(share_offsets(t, topic))


@case("records that are deleted while they are held", ShareAcknowledgeRequest)
def _(t: Talk) -> None:
    member, place = holding(t, 3, 2)
    t.quiet(delete_records_request(place[0].name, 3))
    member.acknowledge({place: [acknowledged(0, 4, ACCEPT)]})


@case("a start behind the end", ShareFetchRequest)
def _(t: Talk) -> None:
    topic = t.filled(3)
    fetch_loaded(started(t, topic, 9), (topic, 0))
    t.look(share_offsets(t, topic))


for _value in ("earliest", "by_duration:P36500D"):

    @case(f"a start by {_value}", ShareFetchRequest)
    def _(t: Talk, value: str = _value) -> None:
        t.quiet(alter_request(t.name("g"), ("share.auto.offset.reset", value), kind=GROUP))
        topic = t.filled(3)
        member = started(t, topic, -1)
        member.fetch((topic, 0))
        t.produce(topic, 0, 2, first=3)
        member.fetch()
