"""Checks every record of a produced batch, and rewrites the batch if its topic asks for that.

A broker stores most batches unread. It reads the records if the topic asks for another codec, bounds the age of
timestamps or requires keys, or if the batch header states something that only the records can confirm. The checks are
those of Apache Kafka: lengths that fit, as many records as the header says, offset deltas 0, 1, 2 …, timestamps within
the bounds, a key where one is required. Records that break a rule of the topic are reported one by one (KIP-467), and
no record of their batch is stored.

A batch that changes its codec is rewritten as Kafka does it: dense deltas, the computed largest timestamp, a new
checksum, and unchanged record bytes. ``inspect_batch`` returns the new batch, or None if the original can be stored.

``RECORDS_MAX`` bounds the decompressed size, ``RECORD_COUNT_MAX`` the number of records. Beside the records, the check
takes 12 bytes per record. The code is pure and slow (about a microsecond per record): for a helper process, never for a
reactor.
"""

import struct
from array import array
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from millstream.model.error_code import ErrorCode
from millstream.wire.batch import CODEC_MASK, CRC_START, HEADER, HEADER_BYTES, LOG_APPEND_TIME, OVERHEAD_BYTES
from millstream.wire.compression import Codec, compress, decompress
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.varint import read_varlong, varlong

RECORDS_MAX: Final = 64 << 20
"""Maximum decompressed size of one batch's records, in bytes."""

RECORD_COUNT_MAX: Final = 1 << 20
"""Maximum number of records in one batch. librdkafka sends a million at most. 64 MiB of empty records would be nine
million, in 64 KiB of gzip.
"""

NAMED_MAX: Final = 100
"""Maximum number of records named in one refusal."""

AS_IT_CAME: Final = -1
NO_TIMESTAMP: Final = -1

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

_LZ4_FAST: Final = 9
"""Kafka's default level of lz4. Kafka uses the fast compressor for it."""
_LZ4_LEVELS: Final = (3, 12)

_pack_crc_into = struct.Struct(">I").pack_into


class Refusal(NamedTuple):
    """Why a batch is refused, and which of its records (by index) are at fault."""

    message: str
    records: list[tuple[int, str]]


class TopicKind(IntEnum):
    """What a topic keeps of the records that are produced to it."""

    RECORDS = 0
    EVENTS = 1
    """Events whose metadata are JSON text (``format.events.from_records``)."""
    ENCODED_EVENTS = 2
    """Events whose metadata only clients of event topics can encode."""


class Rules(msgspec.Struct, frozen=True, array_like=True):
    """What a topic requires of a batch. ``codec`` is the codec to store it with, or ``AS_IT_CAME``."""

    codec: int
    level: int | None
    batch_bytes_max: int
    keyed: bool
    """Every record must have a key, because the topic is compacted."""

    append_time: bool
    """The broker sets the timestamp (LogAppendTime). Otherwise timestamps must lie in [oldest, newest]."""

    oldest_ms: int
    newest_ms: int
    kind: TopicKind = TopicKind.RECORDS


class Refused(Exception):
    """The batch must not be stored. ``refusal`` says why."""

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.refusal = Refusal(message, (records or [])[:NAMED_MAX])


class _Seen:
    """Facts about the records of one batch."""

    __slots__ = ("dense", "keyless", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.keyless = array("I")
        self.dense = True


def inspect_batch(batch: bytes | bytearray | memoryview, rules: Rules) -> bytes | None:
    """The batch to store instead of ``batch``, or None to store it as it is. Header and checksum were checked before.

    Raises:
        Refused: the batch breaks a rule of the format or of the topic.
    """
    view = memoryview(batch)
    fields = HEADER.unpack_from(view)
    attributes, base_timestamp, max_timestamp, count = fields[5], fields[7], fields[8], fields[12]
    codec = attributes & CODEC_MASK
    try:
        if count > RECORD_COUNT_MAX:
            raise ProtocolError(f"{count} records, {RECORD_COUNT_MAX} are the most")
        data = decompress(codec, view[HEADER_BYTES:], RECORDS_MAX)
        seen = _walk(data, count, base_timestamp)
    except BatchError as error:
        code = ErrorCode.MESSAGE_TOO_LARGE if error.code is ErrorCode.MESSAGE_TOO_LARGE else ErrorCode.INVALID_RECORD
        raise Refused(code, str(error)) from error
    except (IndexError, ProtocolError) as error:
        raise Refused(ErrorCode.INVALID_RECORD, f"the records do not fill the batch: {error}") from error
    stamped = bool(attributes & LOG_APPEND_TIME)
    _judge(seen, rules, stamped=stamped, batch_timestamp=max_timestamp)
    target = codec if rules.codec == AS_IT_CAME else rules.codec
    largest = max_timestamp if rules.append_time or stamped else max(seen.timestamps)
    if target == codec:
        if not seen.dense:
            raise Refused(ErrorCode.INVALID_RECORD, "offset deltas are not 0, 1, 2 and so on")
        if largest == max_timestamp and not stamped:
            return None
        payload: bytes | memoryview = view[HEADER_BYTES:]
    else:
        payload = compress(target, data if seen.dense else _renumbered(data, count), codec_level(target, rules.level))
    size = HEADER_BYTES + len(payload)
    if size > rules.batch_bytes_max:
        raise Refused(
            ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes after compression, {rules.batch_bytes_max} fit"
        )
    head = list(fields)
    head[1] = size - OVERHEAD_BYTES
    head[5] = (attributes & ~(CODEC_MASK | LOG_APPEND_TIME)) | target
    head[8] = largest
    out = bytearray(HEADER.pack(*head))
    out += payload
    _pack_crc_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return bytes(out)


def codec_level(codec: int, level: int | None) -> int | None:
    """Kafka's level of a codec, converted for ``compression.compress``."""
    if level is None or codec != Codec.LZ4:
        return level
    low, high = _LZ4_LEVELS
    return None if level == _LZ4_FAST else max(low, min(high, level))


def _walk(data: bytes, count: int, base_timestamp: int) -> _Seen:
    """Read the fields of every record. IndexError or ProtocolError if a length does not fit."""
    seen = _Seen()
    at, size = 0, len(data)
    for index in range(count):
        length, body = read_varlong(data, at)
        end = body + length
        if length < 0 or end > size:
            raise ProtocolError(f"record {index} claims {length} bytes, {size - body} are left")
        timestamp_delta, deltas = read_varlong(data, body + 1)
        offset_delta, rest = read_varlong(data, deltas)
        if offset_delta != index:
            seen.dense = False
        key_size, at = read_varlong(data, rest)
        if key_size < 0:
            seen.keyless.append(index)
        at = _skip(data, at, key_size)
        value_size, at = read_varlong(data, at)
        at = _skip(data, at, value_size)
        headers, at = read_varlong(data, at)
        if not 0 <= headers <= size - at:
            raise ProtocolError(f"record {index} claims {headers} headers")
        for _ in range(headers):
            name_size, at = read_varlong(data, at)
            if name_size < 0:
                raise ProtocolError(f"record {index} has a header without a name")
            value_size, at = read_varlong(data, at + name_size)
            at = _skip(data, at, value_size)
        if at != end:
            raise ProtocolError(f"record {index} has {length} bytes, its fields take {at - body}")
        timestamp = base_timestamp + timestamp_delta
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise ProtocolError(f"record {index} has the timestamp {timestamp}")
        seen.timestamps.append(timestamp)
    if at != size:
        raise ProtocolError(f"{size - at} bytes follow the last record")
    return seen


def _skip(data: bytes, at: int, size: int) -> int:
    """The position after ``size`` bytes. A negative size is null."""
    end = at + size if size > 0 else at
    if end > len(data):
        raise ProtocolError(f"{size} bytes claimed, {len(data) - at} are left")
    return end


def _judge(seen: _Seen, rules: Rules, *, stamped: bool, batch_timestamp: int) -> None:
    """Check the records against the rules of the topic. ``stamped``: the producer itself says LogAppendTime."""
    keyless = iter(seen.keyless if rules.keyed else ())
    if rules.append_time:
        timely = not stamped
    elif stamped:
        timely = _is_timely(batch_timestamp, rules)
    else:
        timely = rules.oldest_ms <= min(seen.timestamps) and max(seen.timestamps) <= rules.newest_ms
    next_keyless = next(keyless, -1)
    if timely and next_keyless < 0:
        return
    count, of_time, named = 0, False, list[tuple[int, str]]()
    for index, timestamp in enumerate(seen.timestamps):
        said = ""
        if index == next_keyless:
            next_keyless = next(keyless, -1)
            said = "It has no key, and its topic is compacted."
        elif rules.append_time and stamped:
            said = "It has a timestamp type that only the broker may set."
            of_time = True
        elif not rules.append_time and not _is_timely(timestamp := batch_timestamp if stamped else timestamp, rules):
            said = f"Its timestamp {timestamp} is not within [{rules.oldest_ms}, {rules.newest_ms}]."
            of_time = True
        if said:
            count += 1
            if len(named) < NAMED_MAX:
                named.append((index, said))
    if count:
        raise rejected(ErrorCode.INVALID_TIMESTAMP if of_time else ErrorCode.INVALID_RECORD, named, count)


def rejected(code: ErrorCode, named: list[tuple[int, str]], count: int = 0) -> Refused:
    """The refusal of a batch for some of its records, each with what is wrong, in Kafka's words. ``count`` is their
    number if not all of them are named.
    """
    if code is ErrorCode.INVALID_TIMESTAMP:
        return Refused(code, "One or more records have been rejected due to invalid timestamp", named)
    first = ", ".join(f"RecordError(batchIndex={index}, message='{what}')" for index, what in named[:3])
    message = (
        f"One or more records have been rejected due to {count or len(named)} record errors in total, "
        f"and only showing the first three errors at most: [{first}]"
    )
    return Refused(code, message, named)


def _is_timely(timestamp: int, rules: Rules) -> bool:
    return timestamp == NO_TIMESTAMP or rules.oldest_ms <= timestamp <= rules.newest_ms


def _renumbered(data: bytes, count: int) -> bytes:
    """The records with offset deltas 0, 1, 2 and so on. They were checked before."""
    view = memoryview(data)
    out = bytearray()
    at = 0
    for index in range(count):
        length, body = read_varlong(data, at)
        at = body + length
        _, deltas = read_varlong(data, body + 1)
        _, rest = read_varlong(data, deltas)
        delta = varlong(index)
        out += varlong(at - rest + deltas - body + len(delta))
        out += view[body:deltas]
        out += delta
        out += view[rest:at]
    return bytes(out)
