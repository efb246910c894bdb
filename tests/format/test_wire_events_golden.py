"""The bytes of the APIs of Millstream alone: clients of later and earlier releases speak them."""

import pytest

from millstream.wire.codec import decode_message, encode_message
from millstream.wire.messages.acknowledge_events import (
    AcknowledgedPartition,
    AcknowledgedPartitionResult,
    AcknowledgeEventsRequest,
    AcknowledgeEventsResponse,
)
from millstream.wire.messages.describe_verifiers import (
    DescribeVerifiersRequest,
    DescribeVerifiersResponse,
    UserVerifier,
)
from millstream.wire.messages.events_metadata import (
    EventsMetadataBroker,
    EventsMetadataPartition,
    EventsMetadataRequest,
    EventsMetadataResponse,
    EventsMetadataTopic,
)
from millstream.wire.messages.feed_events import EventTimes, FeedEventsRequest, FeedEventsResponse
from millstream.wire.messages.fetch_event_data import (
    FetchEventDataRequest,
    FetchEventDataResponse,
    FoundEventData,
    WantedEventData,
)
from millstream.wire.messages.leader import LeaderIdAndEpoch, NodeEndpoint
from millstream.wire.messages.push_events import PushEventsRequest, PushEventsResponse
from millstream.wire.messages.replace_segments import (
    ReplaceSegmentsRequest,
    ReplaceSegmentsResponse,
    SegmentOfReplacement,
)
from millstream.wire.messages.reserve_producer_ids import ReserveProducerIdsRequest, ReserveProducerIdsResponse
from millstream.wire.messages.restore_batches import RestoreBatchesRequest, RestoreBatchesResponse
from millstream.wire.messages.restore_verifiers import RestoreVerifiersRequest, RestoreVerifiersResponse

ID = bytes(range(16))
ID_HEX = ID.hex()
GOLDEN = {
    "push": (PushEventsRequest(ID, 2, 500, b"\xca\xfe"), f"{ID_HEX} 00000002 000001f4 03cafe 00"),
    "pushed": (
        PushEventsResponse(0, 6, "no", -1, LeaderIdAndEpoch(1, 2), [NodeEndpoint(1, "h", 9092)]),
        "00000000 0006 036e6f ffffffffffffffff 02 00 09 00000001 00000002 00 01 0d 02 00000001 0268 00002384 00 00",
    ),
    "feed": (
        FeedEventsRequest("c", ID, 2, 3, 7, 100, 4096, 500, True),
        f"0263 {ID_HEX} 00000002 00000003 0000000000000007 00000064 00001000 000001f4 01 00",
    ),
    "fed": (
        FeedEventsResponse(0, 0, None, 7, 9, 0, True, [EventTimes(1, 5)], b"\1\0\0\0", b"m", b"\2\0\0\0", b"de"),
        (
            "00000000 0000 00 0000000000000007 0000000000000009 0000000000000000 01 02 00000001 0000000000000005 00"
            "05 01000000 02 6d 05 02000000 03 6465 00"
        ),
    ),
    "fetch data": (
        FetchEventDataRequest(ID, 2, 3, 4096, [WantedEventData(7, b"d")]),
        f"{ID_HEX} 00000002 00000003 00001000 02 0000000000000007 0264 00 00",
    ),
    "fetched data": (
        FetchEventDataResponse(0, 0, None, [FoundEventData(0, 2)], b"xy"),
        "00000000 0000 00 02 0000 00000002 00 03 7879 00",
    ),
    "acknowledge": (
        AcknowledgeEventsRequest("c", ID, True, [AcknowledgedPartition(2, 8)], "m", 3),
        f"0263 {ID_HEX} 01 02 00000002 0000000000000008 00 026d 00000003 00",
    ),
    "acknowledged": (
        AcknowledgeEventsResponse(0, 0, None, [AcknowledgedPartitionResult(2, 0, 8)]),
        "00000000 0000 00 02 00000002 0000 0000000000000008 00 00",
    ),
    "metadata wanted": (EventsMetadataRequest(["t"]), "02 0274 00"),
    "all metadata wanted": (EventsMetadataRequest(None), "00 00"),
    "metadata": (
        EventsMetadataResponse(
            0,
            [EventsMetadataBroker(1, "h", 9092)],
            [
                EventsMetadataTopic(
                    0, None, "t", ID, "{}", "", "", 16, True, [EventsMetadataPartition(0, 0, 1, 2, ID, 3, 9)]
                )
            ],
        ),
        (
            f"00000000 02 00000001 0268 00002384 00 02 0000 00 0274 {ID_HEX} 037b7d 01 01 00000010 01"
            f"02 0000 00000000 00000001 00000002 {ID_HEX} 0000000000000003 0000000000000009 00 00 00"
        ),
    ),
    "replace": (
        ReplaceSegmentsRequest(ID, 2, ID, 7, [SegmentOfReplacement(1, 2, 3, 4, 5, 6, 7, 8, 9)], []),
        (
            f"{ID_HEX} 00000002 {ID_HEX} 0000000000000007 02 0000000000000001 0000000000000002 0000000000000003"
            "0000000000000004 0000000000000005 0000000000000006 0000000000000007 0000000000000008 0000000000000009 00"
            "01 00"
        ),
    ),
    "restore": (RestoreBatchesRequest(ID, 2, b"abc"), f"{ID_HEX} 00000002 04616263 00"),
    "restored": (RestoreBatchesResponse(0, 1, "no", 8), "00000000 0001 036e6f 0000000000000008 00"),
    "reserve": (ReserveProducerIdsRequest(7), "0000000000000007 00"),
    "reserved": (ReserveProducerIdsResponse(0, 0, None, 9), "00000000 0000 00 0000000000000009 00"),
    "verifiers wanted": (DescribeVerifiersRequest(), "00"),
    "verifiers": (
        DescribeVerifiersResponse(0, 0, None, [UserVerifier("u", 2, 4096, b"s", b"k", b"v")]),
        "00000000 0000 00 02 0275 02 00001000 0273 026b 0276 00 00",
    ),
    "restore verifiers": (
        RestoreVerifiersRequest([UserVerifier("u", 2, 4096, b"s", b"k", b"v")]),
        "02 0275 02 00001000 0273 026b 0276 00 00",
    ),
    "restored verifiers": (RestoreVerifiersResponse(0, 1, "no"), "00000000 0001 036e6f 00"),
    "replaced": (ReplaceSegmentsResponse(0, 95, "no", 8), "00000000 005f 036e6f 0000000000000008 00"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_of_our_own_apis_never_change(name: str) -> None:
    message, text = GOLDEN[name]
    data = bytes.fromhex(text.replace(" ", ""))
    assert bytes(encode_message(message, 0)).hex() == data.hex()
    assert decode_message(type(message), 0, data) == message
