"""What the wire layer costs: microseconds of CPU per message, batch and header.

    .venv/bin/python bench/micro_wire.py [filter]

Each row is the best of seven runs, which is the machine's figure without its other guests. Every result is checked
before it is timed: decoded messages equal what was encoded, batches carry the right checksum.

Measured on 2 cores of 2.6 GHz, CPython 3.11.7 (``budget`` is the goal that the design set):

::

                                                            µs   budget
    Produce v9 request, 1 partition of 1 KB, decode       1.39      1.6
    Produce v9 request, 3 fragments, decode               6.63
    Produce v9 request, 50 partitions, decode            12.97
    Fetch v12 request in a session, decode                1.52        2
    Produce v9 response, 1 partition, encode              0.75      1.5
    Produce v9 response, 1 partition, whole frame         1.04
    Fetch v16 response, 1 partition, vectored encode      1.45
    Metadata v12 response, 100 topics of 10, encode     518.85     3000
    Metadata v12 response, 100 topics of 10, decode     781.34
    request header v2, parse                              0.37
    batch header, plain unpack                            0.14
    CRC-32C of 1 KB                                       0.16
    batch of 1 KB, full check                             1.23
    100 records of 1 KB, none, build                    190.39
    100 records of 1 KB, none, iterate                  136.98
    100 records of 1 KB, gzip, build                    419.00
    100 records of 1 KB, gzip, iterate                  168.55
    100 records of 1 KB, snappy, build                  196.45
    100 records of 1 KB, snappy, iterate                149.26
    100 records of 1 KB, lz4, build                     189.70
    100 records of 1 KB, lz4, iterate                   140.84
    100 records of 1 KB, zstd, build                    200.80
    100 records of 1 KB, zstd, iterate                  138.95

kafka-python 3.0.12, the same messages, the same class of machine: Produce request decode 3.1, Produce response build
and encode 5.0, Metadata response encode 2457.
"""

import os
import sys
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from crc32c import crc32c

from millstream.iobuf import Arena, IoBuf
from millstream.wire.codec import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_response_vectored,
)
from millstream.wire.compression import Codec
from millstream.wire.frames import response_frame
from millstream.wire.headers import encode_request_header, parse_request_header
from millstream.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from millstream.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millstream.wire.produce_chain import decode_produce_at
from millstream.wire.records import batch_crc_ok, build_batch, check_batch, iter_records, unpack_header

Row = tuple[str, float | None, Callable[[], Any]]
"""What is measured, its budget in µs, and the call."""

TOPIC_ID = bytes(range(16))
RECORD = (b"key", os.urandom(1000), (), 1_700_000_000_000)


def messages() -> Iterator[Row]:
    """Requests as the broker decodes them and responses as it encodes them."""
    batch = build_batch([RECORD])
    produce = ProduceRequest(
        None, -1, 30_000, [TopicProduceData("topic-name", partition_data=[PartitionProduceData(3, batch)])]
    )
    yield decoding("Produce v9 request, 1 partition of 1 KB, decode", 1.6, produce, 0, 9)
    yield chain("Produce v9 request, 3 fragments, decode", produce, 9)
    many = ProduceRequest(
        None,
        -1,
        30_000,
        [TopicProduceData("topic-name", partition_data=[PartitionProduceData(i, b"r" * 100) for i in range(50)])],
    )
    yield decoding("Produce v9 request, 50 partitions, decode", None, many, 0, 9)
    fetch = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_id=77,
        session_epoch=5,
        topics=[FetchTopic("topic-name", partitions=[FetchPartition(0, -1, 100, -1, -1, 1 << 20)])],
    )
    yield decoding("Fetch v12 request in a session, decode", 2.0, fetch, 1, 12)
    produced = ProduceResponse(
        [TopicProduceResponse("topic-name", partition_responses=[PartitionProduceResponse(3, 0, 12345, -1, 0)])]
    )
    yield "Produce v9 response, 1 partition, encode", 1.5, lambda: encode_response(produced, 9)
    yield "Produce v9 response, 1 partition, whole frame", None, lambda: response_frame(produced, 9, 7)
    fetched = FetchResponse(
        session_id=77,
        responses=[
            FetchableTopicResponse(
                topic_id=TOPIC_ID,
                partitions=[PartitionData(0, 0, 9, 9, 0, aborted_transactions=None, records=memoryview(bytes(32768)))],
            )
        ],
    )
    assert b"".join(encode_response_vectored(fetched, 16)) == encode_response(fetched, 16)
    yield "Fetch v16 response, 1 partition, vectored encode", None, lambda: encode_response_vectored(fetched, 16)
    metadata = MetadataResponse(
        brokers=[MetadataResponseBroker(0, "localhost", 9092)],
        cluster_id="cluster",
        topics=[
            MetadataResponseTopic(
                0,
                f"topic-{i}",
                TOPIC_ID,
                partitions=[MetadataResponsePartition(0, p, 0, 0, [0], [0]) for p in range(10)],
            )
            for i in range(100)
        ],
    )
    encoded = bytes(encode_response(metadata, 12))
    assert decode_response(3, 12, encoded, 0, len(encoded)) == metadata
    yield "Metadata v12 response, 100 topics of 10, encode", 3000, lambda: encode_response(metadata, 12)
    yield (
        "Metadata v12 response, 100 topics of 10, decode",
        None,
        lambda: decode_response(3, 12, encoded, 0, len(encoded)),
    )


def decoding(label: str, budget: float | None, message: Any, api_key: int, version: int) -> Row:
    """A row that decodes a request out of a larger receive buffer, behind its header."""
    header = encode_request_header(api_key, version, 7, "client")
    frame = memoryview(bytearray(header + encode_request(message, version)))
    pos, end = len(header), len(frame)
    assert decode_request(api_key, version, frame, pos, end) == message
    return label, budget, lambda: decode_request(api_key, version, frame, pos, end)


def chain(label: str, message: ProduceRequest, version: int) -> Row:
    """A row that decodes a Produce request that lies in three fragments, and releases what it took."""
    arena = Arena.create(0, 1 << 20)
    encoded = encode_request(message, version)
    whole = IoBuf()
    for start in range(0, len(encoded), 400):
        piece = encoded[start : start + 400]
        fragment = arena.allocate(512)
        fragment.view[: len(piece)] = piece
        whole.append(fragment, 0, len(piece))

    def decode() -> None:
        request = decode_produce_at(whole, 0, version)
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, IoBuf)
        records.release()

    return label, None, decode


def batches() -> Iterator[Row]:
    """Headers and record batches."""
    request = memoryview(encode_request_header(0, 9, 7, "client"))
    yield "request header v2, parse", None, lambda: parse_request_header(request, 0, len(request))
    batch = memoryview(build_batch([RECORD]))
    views = [batch]
    assert batch_crc_ok(batch)
    yield "batch header, plain unpack", None, lambda: unpack_header(batch)
    yield "CRC-32C of 1 KB", None, lambda: crc32c(batch[21:])
    yield "batch of 1 KB, full check", None, lambda: check_batch(views)
    records = [RECORD] * 100
    for codec in Codec:
        built = build_batch(records, compression=codec)
        assert len(list(iter_records(built))) == 100
        name = codec.name.lower()
        yield f"100 records of 1 KB, {name}, build", None, lambda codec=codec: build_batch(records, compression=codec)
        yield f"100 records of 1 KB, {name}, iterate", None, lambda built=built: list(iter_records(built))


def best_us(call: Callable[[], Any]) -> float:
    """Least µs per call over seven runs of about a twentieth of a second."""
    timer = timeit.Timer(call)
    number = 1
    while (took := timer.timeit(number)) < 0.02:
        number *= 4
    number = max(1, int(number * 0.05 / took))
    return min(timer.repeat(7, number)) / number * 1e6


def main() -> None:
    wanted = sys.argv[1].lower() if len(sys.argv) > 1 else ""
    print(f"    {'':<48} {'µs':>9} {'budget':>8}")
    for label, budget, call in (*messages(), *batches()):
        if wanted in label.lower():
            print(f"    {label:<48} {best_us(call):>9.2f} {'' if budget is None else f'{budget:g}':>8}".rstrip())


if __name__ == "__main__":
    main()
