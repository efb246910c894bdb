"""The throttle time is put into the encoded response of every API and version that has one."""

import pytest

from millstream.kafka.metered import throttle_place
from millstream.kafka.served import API_VERSIONS_KEY, SERVED
from millstream.wire.apis import APIS
from millstream.wire.codec import decode_response, encode_message
from millstream.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse


@pytest.mark.parametrize("key", sorted(SERVED))
def test_the_place_of_the_throttle_time_is_right_in_every_version(key):
    response = APIS[key].response
    found = 0
    for version in range(SERVED[key].versions[0], SERVED[key].versions[1] + 1):
        place = throttle_place(key, version)
        if place is None:
            continue
        message = response()
        if response is ProduceResponse:
            message = ProduceResponse([TopicProduceResponse("t", partition_responses=[PartitionProduceResponse(7, 3)])])
        encoded = bytearray(encode_message(message, version, bytearray()))
        at = place if place >= 0 else len(encoded) + place
        encoded[at : at + 4] = (77).to_bytes(4, "big")
        decoded = decode_response(key, version, memoryview(encoded), 0, len(encoded))
        assert decoded.throttle_time_ms == 77
        if response is ProduceResponse:
            assert decoded.responses[0].partition_responses[0].error_code == 3
        found += 1
    if "throttle_time_ms" in response.__struct_fields__ and key != API_VERSIONS_KEY:
        assert found
