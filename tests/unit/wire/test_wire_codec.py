"""The codec beyond round trips: what is left out, what is refused, what the caller can look at."""

from typing import Annotated

import pytest

from millstream.model.error_code import ErrorCode
from millstream.wire.apis import API_VERSIONS, APIS, api_name
from millstream.wire.codec import (
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
    encode_response_vectored,
    generated_source,
    message_decoder,
    request_decoder,
    warm_up,
)
from millstream.wire.errors import EncodeError, ProtocolError, UnsupportedVersion
from millstream.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.leader import LeaderIdAndEpoch
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millstream.wire.schema import F, Int8, Int16, Int32, Message, UInt16, UInt32, fields_of, version_range


def produce(records: object) -> ProduceRequest:
    return ProduceRequest(topic_data=[TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])])  # type: ignore[arg-type]


class TestDecoding:
    def test_records_are_a_view_of_the_frame_and_not_a_copy(self) -> None:
        frame = bytearray(encode_request(produce(b"payload"), 9))
        request = decode_request(0, 9, memoryview(frame), 0, len(frame))
        assert isinstance(request, ProduceRequest)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        at = frame.index(b"payload")
        frame[at] = ord("P")
        assert bytes(records) == b"Payload"

    def test_null_records_stay_null_and_empty_ones_empty(self) -> None:
        for records in (None, b""):
            encoded = encode_request(produce(records), 9)
            request = decode_message(ProduceRequest, 9, encoded)
            assert request.topic_data[0].partition_data[0].records == records

    def test_unknown_tags_are_skipped_at_every_level(self) -> None:
        plain = bytes(encode_request(produce(b"x"), 9))
        tagged = plain[:-3] + b"\x02\x05\x01z\x63\x00" + b"\x01\x07\x02ab" + b"\x01\x80\x01\x00"
        assert decode_message(ProduceRequest, 9, tagged) == decode_message(ProduceRequest, 9, plain)

    def test_a_known_tag_that_does_not_fill_its_size_is_refused(self) -> None:
        request = FetchRequest(cluster_id="abc")
        encoded = bytes(encode_request(request, 12))
        assert encoded.endswith(b"\x01\x00\x04\x04abc")
        with pytest.raises(ProtocolError, match="does not fill"):
            decode_message(FetchRequest, 12, encoded[:-6] + b"\x00\x05\x04abcd")

    def test_a_null_where_the_version_has_none_names_the_field(self) -> None:
        with pytest.raises(ProtocolError, match="group_id is null"):
            decode_message(HeartbeatRequest, 0, b"\xff\xff" + bytes(8))
        with pytest.raises(ProtocolError, match="topics is null"):
            decode_message(MetadataRequest, 0, b"\xff\xff\xff\xff")
        assert decode_message(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None

    def test_a_count_is_judged_by_the_bytes_that_are_left(self) -> None:
        with pytest.raises(ProtocolError, match="1000 elements claimed where 6 bytes are left"):
            decode_message(MetadataRequest, 0, b"\0\0\x03\xe8" + bytes(6))

    def test_an_over_long_null_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match="over-long encoding of null"):
            decode_message(HeartbeatRequest, 4, b"\x80\x00" + bytes(8))

    def test_lengths_of_several_bytes_are_read(self) -> None:
        request = HeartbeatRequest(group_id="g" * 20_000, member_id="m" * 127)
        assert decode_message(HeartbeatRequest, 4, encode_request(request, 4)) == request

    def test_errors_name_message_and_version(self) -> None:
        with pytest.raises(ProtocolError, match=r"HeartbeatRequest v3: ends early") as caught:
            decode_message(HeartbeatRequest, 3, b"\0")
        assert caught.value.code is ErrorCode.INVALID_REQUEST


class TestVersions:
    def test_undeclared_apis_and_versions_are_refused(self) -> None:
        for key, version in ((0, 2), (0, 14), (0, -1), (9999, 0), (-1, 0), (12, 5)):
            with pytest.raises(UnsupportedVersion) as caught:
                decode_request(key, version, b"", 0, 0)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(UnsupportedVersion):
            decode_response(9999, 0, b"", 0, 0)
        with pytest.raises(UnsupportedVersion):
            encode_response(HeartbeatResponse(), 5)

    def test_the_table_names_what_it_declares(self) -> None:
        assert API_VERSIONS[0] == (3, 13)
        assert API_VERSIONS[22] == (0, 5)
        assert api_name(0) == "Produce"
        assert api_name(9999) == "api 9999"
        assert all(key == api.request.API_KEY for key, api in APIS.items())

    def test_a_field_that_a_version_lacks_is_left_out(self) -> None:
        old = encode_response(HeartbeatResponse(throttle_time_ms=7, error_code=1), 0)
        assert old == b"\x00\x01"


class TestEncoding:
    @pytest.mark.parametrize(
        "message",
        [
            HeartbeatRequest(group_id=None),  # type: ignore[arg-type]
            HeartbeatRequest(generation_id=1 << 31),
            HeartbeatRequest(generation_id="1"),  # type: ignore[arg-type]
            HeartbeatRequest(group_id="\ud800"),
            HeartbeatRequest(member_id="m" * 32768),
        ],
    )
    def test_a_value_that_does_not_fit_is_an_encode_error(self, message: HeartbeatRequest) -> None:
        with pytest.raises(EncodeError, match="HeartbeatRequest v3"):
            encode_request(message, 3)

    def test_tagged_fields_are_written_only_when_they_differ_from_their_default(self) -> None:
        plain = ProduceResponse([TopicProduceResponse("t", partition_responses=[PartitionProduceResponse(0)])])
        moved = ProduceResponse(
            [
                TopicProduceResponse(
                    "t", partition_responses=[PartitionProduceResponse(0, current_leader=LeaderIdAndEpoch(1, 2))]
                )
            ]
        )
        extra = len(encode_response(moved, 10)) - len(encode_response(plain, 10))
        assert extra == 1 + 1 + 9  # tag, size, two int32 and an empty tagged section
        assert encode_response(moved, 9) == encode_response(plain, 9)

    def test_an_equal_default_that_is_another_object_is_left_out_too(self) -> None:
        one = ProduceResponse([TopicProduceResponse("t", partition_responses=[PartitionProduceResponse(0)])])
        other = ProduceResponse(
            [
                TopicProduceResponse(
                    "t", partition_responses=[PartitionProduceResponse(0, current_leader=LeaderIdAndEpoch())]
                )
            ]
        )
        assert encode_response(one, 10) == encode_response(other, 10)

    def test_default_lists_are_not_shared(self) -> None:
        CreatableTopicResult().configs.append("x")  # type: ignore[union-attr,arg-type]
        assert CreatableTopicResult().configs == []


class _Chain:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [memoryview(piece) for piece in pieces]

    def views(self) -> list[memoryview]:
        return self.pieces


def fetched(*records: object) -> FetchResponse:
    partitions = [PartitionData(i, records=r) for i, r in enumerate(records)]  # type: ignore[arg-type]
    return FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])


class TestRecords:
    BIG = b"b" * 5000
    SMALL = b"s" * 10

    @pytest.mark.parametrize("version", [4, 11, 12, 18])
    @pytest.mark.parametrize("vectored", [False, True])
    def test_every_shape_of_records_is_written_alike(self, version: int, vectored: bool) -> None:
        whole = self.BIG + self.SMALL
        shapes = (
            whole,
            bytearray(whole),
            memoryview(whole),
            [self.BIG, memoryview(self.SMALL)],
            (self.BIG, self.SMALL),
            _Chain(self.BIG, self.SMALL),
        )
        expected = encode_response(fetched(whole), version)
        for shape in shapes:
            message = fetched(shape)
            got = (
                b"".join(encode_response_vectored(message, version)) if vectored else encode_response(message, version)
            )
            assert got == expected

    def test_large_pieces_are_passed_through_and_small_ones_joined(self) -> None:
        big = memoryview(self.BIG)
        parts = encode_response_vectored(fetched([self.SMALL, big], self.SMALL, None, b""), 12, b"head")
        assert len(parts) == 3
        assert parts[1] is big
        assert isinstance(parts[0], bytearray)
        assert parts[0].startswith(b"head")
        assert parts[0].endswith(self.SMALL)

    def test_a_response_without_records_is_one_buffer(self) -> None:
        assert encode_response_vectored(HeartbeatResponse(), 4) == [encode_response(HeartbeatResponse(), 4)]


class TestSource:
    def test_neighbouring_fixed_fields_are_read_by_one_call(self) -> None:
        assert "acks, timeout_ms, count = unpack_hiB(buf, pos)" in generated_source(ProduceRequest, 9, "decode")

    def test_written_text_shows_in_tracebacks(self) -> None:
        import linecache

        message_decoder(HeartbeatRequest, 4)
        label = "<millstream.wire HeartbeatRequest v4 decode>"
        assert linecache.getline(label, 1).startswith("def decode(")

    def test_functions_are_compiled_once(self) -> None:
        warm_up([(12, 4)])
        assert request_decoder(12, 4) is message_decoder(HeartbeatRequest, 4)


class _Inner(Message):
    number: Int8 = 0


class _Odd(Message, versions=(0, 2), flexible=2):
    """Kinds that no API of the table uses yet."""

    port: UInt16 = 0
    size: UInt32 = 0
    ratio: float = 0.0
    inner: _Inner | None = None
    late: Annotated[_Inner | None, F("1+")] = None
    numbers: list[Int16] = []  # noqa: RUF012
    maybe: Annotated[list[str] | None, F("2+", tag=3)] = None
    size_hint: Annotated[Int32, F("2+", tag=300)] = -1


class TestOtherKinds:
    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_they_survive_a_round_trip(self, version: int) -> None:
        late = _Inner(-3) if version else None
        tagged = {"maybe": ["a", ""], "size_hint": 9} if version == 2 else {}
        message = _Odd(65535, 0xFFFFFFFF, 0.25, _Inner(5), late, [1, -1], **tagged)
        assert decode_message(_Odd, version, encode_message(message, version)) == message
        assert decode_message(_Odd, version, encode_message(_Odd(), version)) == _Odd()

    def test_a_nullable_struct_stands_behind_one_byte(self) -> None:
        assert encode_message(_Odd(), 0)[14:15] == b"\xff"
        assert encode_message(_Odd(inner=_Inner(7)), 0)[14:16] == b"\x01\x07"


class TestSchema:
    def test_ranges(self) -> None:
        assert version_range("3+")[0] == 3
        assert version_range("0-3") == (0, 3)
        assert version_range("2") == (2, 2)

    def test_a_declaration_that_makes_no_sense_is_refused(self) -> None:
        class NoKind(Message):
            number: int = 0

        class NotNullable(Message):
            number: Annotated[Int32, F(nullable="1+")] = 0

        class NoDefault(Message):
            number: Int32

        for broken in (NoKind, NotNullable, NoDefault):
            with pytest.raises(TypeError, match=broken.__name__):
                fields_of(broken, 0)

    def test_topics_by_name_and_by_id_share_a_struct(self) -> None:
        by_name = MetadataRequest([MetadataRequestTopic(name="t")])
        assert decode_message(MetadataRequest, 4, encode_request(by_name, 4)) == by_name
        by_id = MetadataRequest([MetadataRequestTopic(b"i" * 16, None)])
        assert decode_message(MetadataRequest, 12, encode_request(by_id, 12)) == by_id


def test_librdkafkas_metadata_request_for_all_topics_decodes() -> None:
    """librdkafka 2.16 writes the null array of topics as four bytes, so three are left over; Kafka does not mind."""
    body = bytes.fromhex("00 00 00 00 01 00 00")
    request = decode_request(3, 13, body, 0, len(body))
    assert request.topics is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", [4, 5])
def test_an_error_message_that_quotes_a_clients_long_text_is_cut_and_a_short_one_is_not(version: int) -> None:
    for text, told in (("ä" * 40_000, "ä" * 2048), ("a" + "ä" * 40_000, "a" + "ä" * 2047), ("short", "short")):
        data = encode_response(CreateTopicsResponse(topics=[CreatableTopicResult("t", error_message=text)]), version)
        answer = decode_response(19, version, data, 0, len(data))
        assert isinstance(answer, CreateTopicsResponse)
        assert answer.topics[0].error_message == told
