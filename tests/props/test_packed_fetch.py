"""Packed Fetch responses are byte for byte those of the codec, in every version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.codec import encode_response_vectored
from millstream.wire.encoding import JOIN_BELOW
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millstream.wire.packed_fetch import ReadTopic, pack_fetch

OFFSETS = st.integers(-1, 1 << 62)
PIECES = st.sampled_from([1, 3, 125, 126, 127, 128, JOIN_BELOW, JOIN_BELOW + 1, 16_381, 16_382, 16_383, 20_000])


class Chain:
    """Records in pieces, as the log cache lends them."""

    def __init__(self, sizes: list[int]) -> None:
        self.pieces = [memoryview(bytes([size % 251]) * size) for size in sizes]

    def views(self) -> list[memoryview]:
        return self.pieces


RECORDS = st.none() | st.builds(Chain, st.lists(PIECES, max_size=4))
PARTITION = st.tuples(st.integers(0, 1 << 30), OFFSETS, OFFSETS, OFFSETS, RECORDS)
NAMES = st.sampled_from(["t", "größer", "n" * 126, "n" * 127, "n" * 249])
TOPIC = st.builds(ReadTopic, NAMES, st.binary(min_size=16, max_size=16), st.lists(PARTITION, max_size=4))


def as_message(session_id: int, topics: list[ReadTopic], committed: bool) -> FetchResponse:
    return FetchResponse(
        session_id=session_id,
        responses=[
            FetchableTopicResponse(
                topic.name,
                topic.topic_id,
                [
                    PartitionData(
                        index,
                        0,
                        high_watermark,
                        last_stable_offset,
                        log_start_offset,
                        aborted_transactions=[] if committed else None,
                        records=b"" if records is None else records,
                    )
                    for index, high_watermark, last_stable_offset, log_start_offset, records in topic.partitions
                ],
            )
            for topic in topics
        ],
    )


@pytest.mark.parametrize("version", range(FetchResponse.VERSIONS[0], FetchResponse.VERSIONS[1] + 1))
@given(st.integers(0, 1 << 30), st.lists(TOPIC, max_size=3), st.booleans(), st.sampled_from([b"", bytes(8), bytes(9)]))
def test_packed_is_what_the_codec_writes(
    version: int, session_id: int, topics: list[ReadTopic], committed: bool, head: bytes
) -> None:
    packed = pack_fetch(version, head, session_id, topics, committed=committed)
    written = encode_response_vectored(as_message(session_id, topics, committed), version, head)
    assert [bytes(piece) for piece in packed] == [bytes(piece) for piece in written]
    assert isinstance(packed[0], bytearray)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_a_topic_of_many_partitions_has_a_longer_count(version: int) -> None:
    for count in (126, 127, 128, 20_000):
        topics = [ReadTopic("t", bytes(16), [(index, 5, 5, 0, None) for index in range(count)])]
        packed = pack_fetch(version, b"", 7, topics, committed=False)
        assert packed == encode_response_vectored(as_message(7, topics, False), version)
