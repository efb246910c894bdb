"""An answer that cannot be encoded costs its client the connection, and nobody else anything."""

from types import SimpleNamespace

import pytest

from millstream.kafka.context import RequestContext
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponse,
    ShareOffsetsGroup,
    ShareOffsetsPartition,
    ShareOffsetsTopic,
)
from millstream.wire.schema import ZERO_UUID


class Line:
    """A connection that knows whether it was closed."""

    client = "127.0.0.1:5"
    received_us = 0

    def __init__(self):
        self.closed = False
        self.responses = SimpleNamespace(unsent=0, held=0)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("vectored", [False, True])
def test_its_connection_is_closed_and_the_request_is_over(vectored, capfd):
    line = Line()
    api = SimpleNamespace(name="DescribeShareGroupOffsets", answered=lambda _: None, tagged_header_from=0)
    context = RequestContext(line, api, 1, 7, memoryview(b""), 0)
    lag = ShareOffsetsPartition(0, 0, lag=1 << 63)
    answer = DescribeShareGroupOffsetsResponse([ShareOffsetsGroup("g", [ShareOffsetsTopic("t", ZERO_UUID, [lag])])])
    released = []
    if vectored:
        context.respond_vectored(answer, SimpleNamespace(release=lambda: released.append(1)))
    else:
        context.respond(answer)
    assert line.closed and context.done and context.buffers is None
    assert released == [1] * vectored
    assert "the answer to DescribeShareGroupOffsets version 1 of 127.0.0.1:5 cannot be sent" in capfd.readouterr().err
