"""Produce requests that lie in several fragments."""

import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from millstream.iobuf import Arena, IoBuf
from millstream.wire.codec import decode_message, encode_request
from millstream.wire.decoding import TEXT_BYTES_MAX
from millstream.wire.errors import ProtocolError, UnsupportedVersion
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.produce_chain import decode_produce_at

VERSIONS = range(ProduceRequest.VERSIONS[0], ProduceRequest.VERSIONS[1] + 1)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(0, 4 << 20, poison=True)
    yield arena
    assert arena.live_fragments == 0, arena.leaks()


def request(rng: Random, version: int) -> ProduceRequest:
    def topic(index: int) -> TopicProduceData:
        named: dict[str, Any] = {"topic_id": rng.randbytes(16)} if version >= 13 else {"name": f"topic-{index}-ä"}
        runs = [rng.choice((None, b"", rng.randbytes(rng.randint(1, 3000)))) for _ in range(rng.randint(0, 4))]
        return TopicProduceData(**named, partition_data=[PartitionProduceData(i, run) for i, run in enumerate(runs)])

    topics = [topic(i) for i in range(rng.randint(0, 3))]
    return ProduceRequest(rng.choice((None, "", "transaction")), rng.choice((-1, 0, 1)), 30_000, topics)


def chain_of(arena: Arena, data: bytes, rng: Random) -> IoBuf:
    """The bytes in fragments of random sizes, each with some room before and behind."""
    chain = IoBuf()
    at = 0
    while at < len(data):
        size = min(len(data) - at, rng.choice((1, 2, 3, 7, 40, 500, 1500)))
        lead = rng.randint(0, 9)
        fragment = arena.allocate(lead + size)
        fragment.view[lead : lead + size] = data[at : at + size]
        chain.append(fragment, lead, lead + size)
        at += size
    return chain


def plain(decoded: ProduceRequest) -> ProduceRequest:
    """The same request with bytes for its chains, which are released."""

    def bytes_of(records: Any) -> bytes | None:
        if records is None:
            return None
        data = b"".join(records.views())
        records.release()
        return data

    return msgspec.structs.replace(
        decoded,
        topic_data=[
            msgspec.structs.replace(
                topic,
                partition_data=[PartitionProduceData(p.index, bytes_of(p.records)) for p in topic.partition_data],
            )
            for topic in decoded.topic_data
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_it_reads_what_the_generated_decoder_reads(arena: Arena, version: int) -> None:
    rng = Random(version)
    for _ in range(25):
        message = request(rng, version)
        chain = chain_of(arena, b"header" + encode_request(message, version), rng)
        decoded = decode_produce_at(chain, 6, version)
        chain.release()
        assert plain(decoded) == message


def test_records_are_shares_of_the_fragments_and_not_copies(arena: Arena) -> None:
    message = ProduceRequest(topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, b"abc" * 400)])])
    chain = chain_of(arena, bytes(encode_request(message, 9)), Random(2))
    live = arena.live_fragments
    decoded = decode_produce_at(chain, 0, 9)
    assert arena.live_fragments == live
    chain.release()
    assert 0 < arena.live_fragments <= live
    assert plain(decoded) == message


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_request_that_is_cut_is_refused_and_shares_nothing(arena: Arena, version: int) -> None:
    rng = Random(version)
    topics = [
        TopicProduceData("topic" if version < 13 else "", partition_data=[PartitionProduceData(0, b"r" * 50)] * 2)
    ]
    whole = bytes(encode_request(ProduceRequest(topic_data=topics), version))
    for cut in range(len(whole)):
        chain = chain_of(arena, whole[:cut], rng)
        with pytest.raises(ProtocolError):
            decode_produce_at(chain, 0, version)
        chain.release()
        assert arena.live_fragments == 0
    chain = chain_of(arena, whole + b"\0", rng)
    request = decode_produce_at(chain, 0, version)  # Kafka ignores what follows a request, and so do we
    assert len(request.topic_data[0].partition_data) == 2
    for topic in request.topic_data:
        for part in topic.partition_data:
            assert isinstance(part.records, IoBuf)
            part.records.release()
    chain.release()


@pytest.mark.parametrize("version", [3, 9, 13])
def test_it_refuses_exactly_what_the_generated_decoder_refuses(arena: Arena, version: int) -> None:
    rng = Random(version + 100)
    data = [PartitionProduceData(0, b"records"), PartitionProduceData(1, None)]
    topics = [TopicProduceData("topic" if version < 13 else "", partition_data=data)] * 2
    whole = bytes(encode_request(ProduceRequest("id", -1, 30_000, topics), version))
    agreed = 0
    for _ in range(600):
        bent = bytearray(whole)
        for _ in range(rng.randint(1, 2)):
            bent[rng.randrange(len(bent))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        try:
            expected: ProduceRequest | None = decode_message(ProduceRequest, version, bytes(bent))
        except ProtocolError:
            expected = None
        chain = chain_of(arena, bytes(bent), rng)
        try:
            got: ProduceRequest | None = plain(decode_produce_at(chain, 0, version))
        except ProtocolError:
            got = None
        chain.release()
        assert got == expected
        agreed += expected is not None
    assert 100 < agreed < 500


@pytest.mark.parametrize("version", [8, 9])
def test_texts_and_tags_longer_than_its_window_are_read(arena: Arena, version: int) -> None:
    message = ProduceRequest(
        "t" * 1000,
        topic_data=[
            TopicProduceData("n" * 700, partition_data=[PartitionProduceData(i, b"r" * i) for i in range(0, 600, 60)])
        ],
    )
    whole = bytes(encode_request(message, version))
    if version == 9:
        whole = whole[:-1] + b"\x02\x07\x90\x03" + b"?" * 400 + b"\x08\x00"
    chain = chain_of(arena, whole, Random(4))
    decoded = decode_produce_at(chain, 0, version)
    chain.release()
    assert plain(decoded) == message


def test_undeclared_versions_are_refused(arena: Arena) -> None:
    for version in (2, 14):
        with pytest.raises(UnsupportedVersion):
            decode_produce_at(IoBuf(), 0, version)


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize("what", ["transactional id", "topic"])
def test_a_text_that_is_longer_than_any_may_be_is_refused(arena: Arena, what: str, longer: int) -> None:
    text = "x" * (TEXT_BYTES_MAX + longer)
    topic = TopicProduceData(text if what == "topic" else "t", partition_data=[PartitionProduceData(0, b"records")])
    message = ProduceRequest(text if what == "transactional id" else None, topic_data=[topic])
    chain = chain_of(arena, bytes(encode_request(message, 9)), Random(5))
    if longer:
        with pytest.raises(ProtocolError, match="a string of 32768 bytes"):
            decode_produce_at(chain, 0, 9)
    else:
        assert plain(decode_produce_at(chain, 0, 9)) == message
    chain.release()


def steps_for(arena: Arena, partitions: int) -> int:
    """Lines of Python that it takes to decode a request for so many partitions, each in a fragment of its own."""
    data = [PartitionProduceData(index, bytes(500)) for index in range(partitions)]
    whole = bytes(encode_request(ProduceRequest(topic_data=[TopicProduceData("t", partition_data=data)]), 9))
    chain = IoBuf()
    for at in range(0, len(whole), 512):
        part = whole[at : at + 512]
        fragment = arena.allocate(512)
        fragment.view[: len(part)] = part
        chain.append(fragment, 0, len(part))
    steps = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal steps
        _ = frame, arg
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decoded = decode_produce_at(chain, 0, 9)
    finally:
        sys.settrace(before)
    assert plain(decoded).topic_data[0].partition_data == data
    chain.release()
    return steps


def test_the_work_grows_with_the_partitions_and_not_with_their_square(arena: Arena) -> None:
    assert steps_for(arena, 800) < 5 * steps_for(arena, 200)
