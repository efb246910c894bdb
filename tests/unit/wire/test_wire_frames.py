"""Whole frames, headers and stored messages."""

import pytest

from millstream.wire.codec import decode_request, decode_response
from millstream.wire.errors import EncodeError, ProtocolError, UnsupportedVersion
from millstream.wire.frames import request_frame, response_frame
from millstream.wire.headers import (
    encode_request_header,
    flexible_from,
    parse_request_header,
    response_header_bytes,
    response_header_version,
)
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.messages.group_storage import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.stored import decode_offsets_key, decode_versioned, encode_key, encode_versioned


class TestFrames:
    @pytest.mark.parametrize("version", [8, 9])
    def test_a_request_frame_is_size_header_and_body(self, version: int) -> None:
        frame = request_frame(MetadataRequest(topics=None), version, 5, "me")
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = parse_request_header(frame, 4, len(frame))
        assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (3, version, 5, "me")
        assert decode_request(3, version, frame, header.body_pos, len(frame)) == MetadataRequest(topics=None)

    @pytest.mark.parametrize(("version", "start"), [(8, 8), (9, 9)])
    def test_a_response_frame_has_a_tagged_header_where_the_version_is_flexible(self, version: int, start: int) -> None:
        frame = response_frame(MetadataResponse(cluster_id="c"), version, 5)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert int.from_bytes(frame[4:8], "big") == 5
        assert decode_response(3, version, frame, start, len(frame)) == MetadataResponse(cluster_id="c")

    def test_api_versions_is_always_answered_with_a_plain_header(self) -> None:
        assert response_header_bytes(18, 4, 1) == b"\0\0\0\1"
        assert response_header_version(18, 4) == 0
        frame = response_frame(ApiVersionsResponse(error_code=35), 4, 1)
        assert decode_response(18, 4, frame, 8, len(frame)) == ApiVersionsResponse(error_code=35)
        assert parse_request_header(request_frame(ApiVersionsRequest(), 3, 1, None), 4, 99).client_id is None

    def test_headers_of_unknown_apis_and_versions_are_still_parsed(self) -> None:
        header = parse_request_header(encode_request_header(999, 7, 1, "x"), 0, 11)
        assert (header.api_key, header.api_version, header.client_id, header.body_pos) == (999, 7, "x", 11)
        assert flexible_from(999) > 1000
        assert flexible_from(3) == 9
        assert response_header_version(3, 9) == 1

    def test_tagged_fields_of_a_request_header_are_skipped(self) -> None:
        plain = encode_request_header(3, 9, 1, "x")
        tagged = plain[:-1] + b"\x01\x00\x02ab"
        assert parse_request_header(tagged + b"body", 0, len(tagged) + 4).body_pos == len(tagged)

    def test_a_client_id_that_is_too_long_is_an_encode_error(self) -> None:
        with pytest.raises(EncodeError):
            encode_request_header(3, 9, 1, "x" * 40000)

    def test_a_client_id_that_is_not_utf_8_is_refused(self) -> None:
        with pytest.raises(ProtocolError, match="UTF-8"):
            parse_request_header(b"\0\3\0\1\0\0\0\1\0\1\xff", 0, 11)


class TestStored:
    def test_keys_of_offsets_and_groups_are_told_apart_by_their_type(self) -> None:
        offset, group = OffsetCommitKey("g", "t", 3), GroupMetadataKey("g")
        assert decode_offsets_key(encode_key(offset)) == offset
        assert decode_offsets_key(encode_key(group)) == group
        assert decode_offsets_key(b"\0\0" + encode_key(offset)[2:]) == offset

    def test_keys_of_other_features_are_none(self) -> None:
        assert decode_offsets_key(b"\0\x18whatever") is None
        assert decode_offsets_key(b"\xff\xff") is None

    @pytest.mark.parametrize("version", range(5))
    def test_values_carry_their_version(self, version: int) -> None:
        value = OffsetCommitValue(offset=9, metadata="m", commit_timestamp=5)
        stored = encode_versioned(value, version)
        assert stored[:2] == bytes((0, version))
        assert decode_versioned(OffsetCommitValue, stored) == value
        members = [MemberMetadata("m", None, "c", "/h", session_timeout=10, subscription=b"s", assignment=b"a")]
        group = GroupMetadataValue("consumer", 4, "range", "m", members=members)
        assert decode_versioned(GroupMetadataValue, encode_versioned(group, version)) == group

    def test_stored_values_of_unknown_versions_are_refused(self) -> None:
        for lead in (b"\0\x05", b"\xff\xff"):
            with pytest.raises(UnsupportedVersion):
                decode_versioned(OffsetCommitValue, lead + bytes(40))
        with pytest.raises(ProtocolError):
            decode_versioned(OffsetCommitValue, b"\0")

    def test_a_newer_subscription_is_read_as_far_as_it_is_known(self) -> None:
        known = ConsumerProtocolSubscription(["a", "b"], b"data", [], 4, "rack")
        newer = b"\0\x09" + encode_versioned(known, 3)[2:] + b"added later"
        assert decode_versioned(ConsumerProtocolSubscription, newer) == known
        with pytest.raises(UnsupportedVersion):
            decode_versioned(ConsumerProtocolSubscription, b"\xff\xff" + bytes(20))
