"""Nothing that was moved is believed: offsets are counted, and every byte is fetched again and checked.

Base offsets that were acknowledged must be dense. :func:`read_back` fetches everything from the start: CRC-32C of every
batch, its offsets without a hole, its content one of the batches that were sent, as many as were acknowledged.
Anything else raises :class:`~bench.raw.UnexpectedAnswer`, and the figure does not come to be.
"""

import struct
from array import array
from dataclasses import dataclass

import crc32c

from bench import raw
from bench.raw import UnexpectedAnswer


@dataclass
class Produced:
    """What a produce load left behind, for :func:`read_back`: base offsets by partition, batches that were sent."""

    topic: str
    acknowledged: "dict[int, array[int]]"
    records_a_batch: int
    checksums: frozenset[int]


def check_dense(produced: Produced) -> int:
    """Base offsets of each partition, sorted, are 0, r, 2r, … for r records a batch; returns the number of records."""
    records = 0
    for partition, bases in produced.acknowledged.items():
        step = produced.records_a_batch
        expected = range(0, len(bases) * step, step)
        if any(got != wanted for got, wanted in zip(sorted(bases), expected, strict=True)):
            raise UnexpectedAnswer(f"{produced.topic}/{partition}: acknowledged offsets have holes or doubles")
        records += len(bases) * step
    return records


def read_back(bootstrap: str, produced: Produced, max_bytes: int = 4 << 20) -> int:
    """Fetches everything from the start: every batch whole, unharmed, known, in its place. Returns the records read."""
    check_dense(produced)
    total = 0
    with raw.Caller(bootstrap) as caller:
        for partition, bases in produced.acknowledged.items():
            end = len(bases) * produced.records_a_batch
            request, place = raw.fetch(produced.topic, partition, max_bytes)
            offset = 0
            while offset < end:
                struct.pack_into(">q", request, place, offset)
                frame = memoryview(caller.call(request))
                answer = raw.FetchAnswer(frame, produced.topic)
                offset = _check_batches(frame[answer.records_start : answer.records_end], offset, produced, partition)
            if offset != end:
                raise UnexpectedAnswer(f"{produced.topic}/{partition}: {offset} records read, {end} acknowledged")
            total += offset
    return total


def read_back_left(bootstrap: str, produced: Produced) -> float:
    """As :func:`read_back`, of a topic that loses its oldest records to retention: dense from the start of each log to
    the last acknowledged record. Returns the share of the acknowledged records that was left.
    """
    total = check_dense(produced)
    left = 0
    with raw.Caller(bootstrap) as caller:
        for partition, bases in produced.acknowledged.items():
            end = len(bases) * produced.records_a_batch
            request, place = raw.fetch(produced.topic, partition, 4 << 20, max_wait_ms=0)
            begin = offset = -1
            while offset < end:
                struct.pack_into(">q", request, place, end if offset < 0 else offset)
                frame = memoryview(caller.call(request))
                try:
                    answer = raw.FetchAnswer(frame, produced.topic)
                except raw.OffsetOutOfRange:
                    offset = -1  # retention was faster; begin again at the new start
                    continue
                if offset < 0:
                    begin = offset = answer.log_start_offset
                    continue
                offset = _check_batches(frame[answer.records_start : answer.records_end], offset, produced, partition)
            if offset != end:
                raise UnexpectedAnswer(f"{produced.topic}/{partition}: {offset} is the end, {end} were acknowledged")
            left += end - begin
    return left / total


def _check_batches(data: memoryview, offset: int, produced: Produced, partition: int) -> int:
    """Offset behind the last whole batch of ``data``."""
    position, began = 0, offset
    header = raw.BATCH_HEADER
    while position + header.size <= len(data):
        base, length, _, magic, crc, _, last_delta, *_, count = header.unpack_from(data, position)
        if position + 12 + length > len(data):
            break
        problem = (
            base != offset
            or magic != 2
            or count != produced.records_a_batch
            or last_delta != count - 1
            or crc not in produced.checksums
            or crc32c.crc32c(data[position + 21 : position + 12 + length]) != crc
        )
        if problem:
            raise UnexpectedAnswer(f"{produced.topic}/{partition}: bad batch at {base}, expected {offset}")
        offset += count
        position += 12 + length
    if offset == began:
        raise UnexpectedAnswer(f"{produced.topic}/{partition}: nothing to read at {offset}")
    return offset
