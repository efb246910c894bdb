"""Produce versions 0 to 2: advertised, never served.

librdkafka chooses a broker's codecs by the advertised range of Produce (KAFKA-18659), so Kafka 4 advertises it from
version 0 on. A client that sends such a version gets UNSUPPORTED_VERSION for each partition.
"""

import struct

from millstream.kafka.context import RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.errors import ProtocolError

_ERROR = int(ErrorCode.UNSUPPORTED_VERSION)


def answer(ctx: RequestContext) -> None:
    """Read the old request for its topics and partitions, and refuse each of them."""
    body = bytes(ctx.body)
    try:
        acks, _, topics = struct.unpack_from(">hii", body)
        position = 10
        answers = [struct.pack(">i", topics)]
        for _ in range(_bounded(topics, body)):
            (size,) = struct.unpack_from(">h", body, position)
            end = position + 2 + _bounded(size, body)
            answers.append(body[position:end])
            (partitions,) = struct.unpack_from(">i", body, end)
            position = end + 4
            answers.append(struct.pack(">i", partitions))
            for _ in range(_bounded(partitions, body)):
                index, size = struct.unpack_from(">ii", body, position)
                position += 8 + _bounded(size, body)
                answers.append(struct.pack(">ihq", index, _ERROR, -1))
                if ctx.api_version >= 2:
                    answers.append(struct.pack(">q", -1))
    except struct.error as error:
        raise ProtocolError("the request is cut short") from error
    if acks == 0:
        ctx.respond_nothing()
        return
    if ctx.api_version >= 1:
        answers.append(struct.pack(">i", 0))
    ctx.respond_encoded(b"".join(answers))


def _bounded(count: int, body: bytes) -> int:
    if not 0 <= count <= len(body):
        raise ProtocolError(f"a count of {count} in {len(body)} bytes")
    return count
