"""Every API at every version: what the encoder writes, the decoder reads back."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import ALL_MESSAGES, API_MESSAGES, by_message, every_version, name_of, sample

from millstream.wire.apis import APIS
from millstream.wire.codec import (
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
    encode_response_vectored,
)
from millstream.wire.schema import Message, Request, Response


@pytest.mark.parametrize("message", by_message(ALL_MESSAGES), ids=name_of)
@settings(max_examples=12)
@given(rng=st.randoms(use_true_random=True))
def test_decoder_reads_back_what_the_encoder_wrote(message: tuple[type[Message], list[int]], rng: Random) -> None:
    cls, versions = message
    for version in versions:
        written = sample(rng, cls, version)
        assert decode_message(cls, version, encode_message(written, version)) == written, version


@every_version(ALL_MESSAGES)
def test_defaults_survive_a_round_trip(cls: type[Message], version: int) -> None:
    assert decode_message(cls, version, encode_message(cls(), version)) == cls()


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_request_and_response_entry_points_find_message_by_key(api: Any) -> None:
    rng = Random(3)
    for version in range(api.versions[0], api.versions[1] + 1):
        request: Request = sample(rng, api.request, version)
        framed = memoryview(b"head" + encode_request(request, version) + b"tail")
        assert decode_request(api.key, version, framed, 4, len(framed) - 4) == request
        response: Response = sample(rng, api.response, version)
        framed = memoryview(b"head" + encode_response(response, version) + b"tail")
        assert decode_response(api.key, version, framed, 4, len(framed) - 4) == response


@every_version([c for c in API_MESSAGES if issubclass(c[0], Response)])
def test_vectored_encoding_sends_the_same_bytes(cls: type[Response], version: int) -> None:
    rng = Random(version)
    for _ in range(5):
        response = sample(rng, cls, version)
        parts = encode_response_vectored(response, version, b"head")
        assert b"".join(parts) == b"head" + encode_response(response, version)
