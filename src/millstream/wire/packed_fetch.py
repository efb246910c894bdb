"""A fast encoder of Fetch responses that hold records and no errors, which nearly all of them are.

``pack_fetch`` gives the same bytes as ``wire.codec.encode_response_vectored`` does for the ``FetchResponse`` with these
values, in every version. A response with an error, a diverging epoch, aborted transactions, a preferred replica or the
address of a leader goes to the codec.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from millstream.wire.encoding import JOIN_BELOW
from millstream.wire.messages.fetch import FetchResponse
from millstream.wire.schema import Piece, ViewChain
from millstream.wire.varint import uvarint

_INT16: Final = struct.Struct(">h").pack
_INT32: Final = struct.Struct(">i").pack
_FRONT: Final = struct.Struct(">ihi").pack
"""Throttle time, error, session id."""
_OFFSETS: Final = struct.Struct(">ihqqq").pack
"""Partition, error, high watermark, last stable offset, log start offset."""
_OLDER_OFFSETS: Final = struct.Struct(">ihqq").pack
_NO_REPLICA: Final = b"\xff\xff\xff\xff"

SESSIONS_FROM: Final = 7
LOG_START_FROM: Final = 5
REPLICA_FROM: Final = 11
BY_ID_FROM: Final = 13


ReadPartition: TypeAlias = tuple[int, int, int, int, ViewChain | None]
"""What was read of a partition: index, high watermark, last stable offset, log start offset, records. A tuple without
names, because those take five times as long to make.
"""


class ReadTopic(NamedTuple):
    """What was read of a topic: by name before version 13, by id from then on."""

    name: str
    topic_id: bytes
    partitions: list[ReadPartition]


def pack_fetch(
    version: int, head: bytes, session_id: int, topics: Sequence[ReadTopic], *, committed: bool
) -> list[Piece]:
    """The buffers of ``head`` and the body, in order; the first is a bytearray that starts with ``head``.

    Records are passed through, but for small pieces, which are copied; the caller keeps their memory alive until the
    last byte is sent. ``committed``: the lists of aborted transactions are empty, otherwise null.
    """
    flexible = version >= FetchResponse.FLEXIBLE
    if flexible:
        between = (b"\1" if committed else b"\0") + _NO_REPLICA
    else:
        between = _INT32(0 if committed else -1) + (_NO_REPLICA if version >= REPLICA_FROM else b"")
    count = _compact if flexible else _INT32
    offsets = _OFFSETS if version >= LOG_START_FROM else _offsets_without_log_start
    parts: list[Piece] = []
    out = bytearray(head)
    out += _FRONT(0, 0, session_id) if version >= SESSIONS_FROM else _INT32(0)
    out += count(len(topics))
    for topic in topics:
        if version >= BY_ID_FROM:
            out += topic.topic_id
        else:
            name = topic.name.encode()
            out += (_compact if flexible else _INT16)(len(name))
            out += name
        out += count(len(topic.partitions))
        for index, high_watermark, last_stable_offset, log_start_offset, records in topic.partitions:
            out += offsets(index, 0, high_watermark, last_stable_offset, log_start_offset)
            out += between
            views = () if records is None else records.views()
            out += count(len(views[0]) if len(views) == 1 else sum(map(len, views)))
            for view in views:
                if len(view) <= JOIN_BELOW:
                    out += view
                else:
                    if out:
                        parts.append(out)
                    parts.append(view)
                    out = bytearray()
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        parts.append(out)
    return parts


def _offsets_without_log_start(index: int, error: int, high_watermark: int, last_stable_offset: int, _: int) -> bytes:
    return _OLDER_OFFSETS(index, error, high_watermark, last_stable_offset)


def _compact(size: int) -> bytes:
    """The length of a compact string, list or byte run, which is one more on the wire."""
    return uvarint(size + 1)
