"""Decoding loops that run once per batch or per record.

``index_batches`` scans the headers of consecutive v2 batches (the layout of a segment file and of a fetch response)
into rows of a table. ``read_records`` decodes the records of such batches into Arrow buffers, stops when those are
full, and continues there in the next call. Every length is checked against the end of the data; an invalid one gives
``MALFORMED``, never a read outside of it.

Layout of batches and records: Kafka protocol guide, "Record Batch" (magic 2).
"""

# ruff: noqa: ANN001, ANN201 (types are stated once, in the signatures for the compiler)
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedFunctionDecorator=false

from typing import Any

import numpy as np
from numba import types

from millstream.spark.compiled import compiled, copy, inlined

# Columns of the table of index_batches, with one row per batch.
POSITION = 0  # of the batch, later of its records section
LENGTH = 1  # of the whole batch, later of its records section
BASE_OFFSET = 2
LAST_OFFSET = 3
ATTRIBUTES = 4
COUNT = 5
BASE_TIMESTAMP = 6
MAX_TIMESTAMP = 7
PRODUCER_ID = 8
CRC = 9
TABLE_WIDTH = 10

HEADER_BYTES = 61
CRC_START = 21
"""First byte that the checksum covers: the attributes."""

# Results of a kernel.
DONE = 0
FULL = 1
GROW = 2
MALFORMED = 3
SHORT = 4
OLD_FORMAT = 5

# Slots of read_records' state between calls.
AT_BATCH = 0
AT_POSITION = 1
AT_RECORD = 2
ROWS = 3
KEY_BYTES = 4
VALUE_BYTES = 5
HEADERS = 6
HEADER_KEY_BYTES = 7
HEADER_VALUE_BYTES = 8
NULL_KEYS = 9
NULL_VALUES = 10
NULL_HEADERS = 11
NULL_HEADER_VALUES = 12
NEEDED = 13
STATE_WIDTH = 14

# Slots of the parameters of read_records.
ROW_LIMIT = 0
BYTE_LIMIT = 1
FROM_OFFSET = 2
END_OFFSET = 3
FROM_TIMESTAMP = 4
LAST_TIMESTAMP = 5
WANT_KEY = 6
WANT_VALUE = 7
WANT_HEADERS = 8
CAPACITY = 9
"""Size of each wanted data buffer in bytes; at least the byte limit."""
PARAMETER_WIDTH = 10

FAR_PAST_MS = -9_223_372_036_854_775
FAR_FUTURE_MS = 9_223_372_036_854_775
"""Range of a Spark timestamp, which counts microseconds. A value outside is clamped."""

_BYTES: Any = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_BYTES: Any = types.Array(types.uint8, 1, "C")
_I32: Any = types.Array(types.int32, 1, "C")
_I64: Any = types.Array(types.int64, 1, "C")
_TABLE: Any = types.Array(types.int64, 2, "C")


@inlined
def big_endian(data, position, size):
    """Signed big-endian integer of ``size`` bytes."""
    value = np.int64(data[position])
    if value >= 128:
        value -= 256
    for index in range(1, size):
        value = (value << 8) | np.int64(data[position + index])
    return value


@inlined
def varint(data, position, end):
    """Zigzag varint: value and position after it; position -1 if it does not end before ``end``."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    while position < end and shift < 70:
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(127)) << shift
        if byte < 128:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled(types.UniTuple(types.int64, 4)(_BYTES, types.int64, types.int64, _TABLE))
def index_batches(data, position, end, table):
    """Fills ``table`` with the whole batches in ``data[position:end]``.

    Returns (status, rows filled, position after the last one, bytes that the next batch needs). ``SHORT``: the next
    batch is incomplete (needed is 0 if even its length is missing). ``FULL``: the table is full. ``DONE``: no bytes
    remain.
    """
    rows = 0
    while rows < table.shape[0]:
        left = end - position
        if left == 0:
            return DONE, rows, position, 0
        if left < HEADER_BYTES:
            return SHORT, rows, position, 0
        if data[position + 16] != 2:
            return OLD_FORMAT, rows, position, 0
        length = big_endian(data, position + 8, 4) + 12
        if length < HEADER_BYTES:
            return MALFORMED, rows, position, 0
        if length > left:
            return SHORT, rows, position, length
        base_offset = big_endian(data, position, 8)
        last_delta = big_endian(data, position + 23, 4)
        count = big_endian(data, position + 57, 4)
        if last_delta < 0 or count < 0 or count > last_delta + 1 or base_offset < 0:
            return MALFORMED, rows, position, 0
        row = table[rows]
        row[POSITION] = position
        row[LENGTH] = length
        row[BASE_OFFSET] = base_offset
        row[LAST_OFFSET] = base_offset + last_delta
        row[ATTRIBUTES] = big_endian(data, position + 21, 2)
        row[COUNT] = count
        row[BASE_TIMESTAMP] = big_endian(data, position + 27, 8)
        row[MAX_TIMESTAMP] = big_endian(data, position + 35, 8)
        row[PRODUCER_ID] = big_endian(data, position + 43, 8)
        row[CRC] = big_endian(data, position + 17, 4) & 0xFFFFFFFF
        position += length
        rows += 1
    return FULL, rows, position, 0


@inlined
def parse_record(data, position, end):
    """One record: (end, size, timestamp delta, offset delta, key at, key length, value at, value length, headers at).

    A length of -1 is null. An end of -1 means that the record is invalid.
    """
    size, at = varint(data, position, end)
    if at < 0 or size < 1 or size > end - at:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    record_end = at + size
    delta, at = varint(data, at + 1, record_end)  # one byte of attributes, unused
    if at < 0:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = varint(data, at, record_end)
    if at < 0:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    key_length, key_at = varint(data, at, record_end)
    if key_at < 0 or key_length > record_end - key_at:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    value_length, value_at = varint(data, key_at + max(key_length, 0), record_end)
    if value_at < 0 or value_length > record_end - value_at:
        return -1, 0, 0, 0, 0, 0, 0, 0, 0
    headers_at = value_at + max(value_length, 0)
    return record_end, size, delta, offset_delta, key_at, key_length, value_at, value_length, headers_at


@inlined
def put(ends, valid, target, row, held, data, at, length):
    """Writes one value, or null for a negative ``length``, to a column. Returns the bytes that the column then
    holds.
    """
    if row & 7 == 0:
        valid[row >> 3] = 0
    if length >= 0:
        copy(target, held, data, at, length)
        held += length
        valid[row >> 3] |= 1 << (row & 7)
    ends[row + 1] = held
    return held


@inlined
def put_headers(
    data, at, end, row, state,
    ends, valid, key_ends, key_data, value_ends, value_valid, value_data,
):  # fmt: skip
    """Writes the headers of one record; an empty list becomes null. Their bytes fit; their number is checked."""
    count, at = varint(data, at, end)
    if at < 0 or count < 0 or count > (end - at) >> 1:
        return MALFORMED
    held = state[HEADERS]
    if held + count > key_ends.shape[0] - 1:
        state[NEEDED] = 2 * count  # a header has at least two bytes
        return FULL if row > 0 else GROW
    keys = state[HEADER_KEY_BYTES]
    values = state[HEADER_VALUE_BYTES]
    for index in range(held, held + count):
        length, at = varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return MALFORMED
        copy(key_data, keys, data, at, length)
        keys += length
        key_ends[index + 1] = keys
        length, at = varint(data, at + length, end)
        if at < 0 or length > end - at:
            return MALFORMED
        values = put(value_ends, value_valid, value_data, index, values, data, at, length)
        at += max(length, 0)
        state[NULL_HEADER_VALUES] += length < 0
    if row & 7 == 0:
        valid[row >> 3] = 0
    if count > 0:
        valid[row >> 3] |= 1 << (row & 7)
    state[NULL_HEADERS] += count == 0
    ends[row + 1] = held + count
    state[HEADERS] = held + count
    state[HEADER_KEY_BYTES] = keys
    state[HEADER_VALUE_BYTES] = values
    return DONE


@inlined
def is_wanted(offset, timestamp, parameters):
    """Whether a record is in the wanted offsets (half open) and times (inclusive)."""
    return (
        parameters[FROM_OFFSET] <= offset < parameters[END_OFFSET]
        and parameters[FROM_TIMESTAMP] <= timestamp <= parameters[LAST_TIMESTAMP]
    )


@inlined
def room_for(size, rows, held, state, parameters):
    """Whether one more record fits (its length bounds each of its parts): ``DONE``, ``FULL`` or ``GROW``."""
    if rows > 0:
        return FULL if rows >= parameters[ROW_LIMIT] or held + size > parameters[BYTE_LIMIT] else DONE
    if size > parameters[CAPACITY]:
        state[NEEDED] = size
        return GROW
    return DONE


@compiled(
    types.int64(
        _BYTES, _TABLE, types.int64, _I64, _I64,
        _I64, _I64, _I32,
        _I32, _OUT_BYTES, _OUT_BYTES, _I32, _OUT_BYTES, _OUT_BYTES,
        _I32, _OUT_BYTES, _I32, _OUT_BYTES, _I32, _OUT_BYTES, _OUT_BYTES,
    )
)  # fmt: skip
def read_records(
    data, table, batches, state, parameters,
    offsets, timestamps, timestamp_types,
    key_ends, key_valid, key_data, value_ends, value_valid, value_data,
    header_ends, header_valid, header_key_ends, header_key_data,
    header_value_ends, header_value_valid, header_value_data,
):  # fmt: skip
    """Writes records of the first ``batches`` rows of ``table`` to columns, continuing at ``state``.

    The table's position and length are those of the records section here. ``*_ends`` are Arrow offsets with a leading
    zero, ``*_valid`` bit masks. Rows outside the wanted offsets (half open) and timestamps (inclusive) are left out.
    Returns ``DONE``; ``FULL`` at the row or byte limit; ``GROW`` if one record alone does not fit the buffers
    (``state[NEEDED]`` has the needed size); ``MALFORMED`` with the state at the invalid batch.
    """
    want_key = parameters[WANT_KEY] != 0
    want_value = parameters[WANT_VALUE] != 0
    want_headers = parameters[WANT_HEADERS] != 0
    rows, keys, values = state[ROWS], state[KEY_BYTES], state[VALUE_BYTES]
    status = DONE
    while state[AT_BATCH] < batches:
        batch = table[state[AT_BATCH]]
        end = batch[POSITION] + batch[LENGTH]
        log_append_time = (batch[ATTRIBUTES] >> 3) & 1
        done = state[AT_RECORD]
        position = state[AT_POSITION] if done > 0 else batch[POSITION]
        while done < batch[COUNT]:
            after, size, delta, offset_delta, key_at, key_length, value_at, value_length, headers_at = parse_record(
                data, position, end
            )
            if after < 0:
                status = MALFORMED
                break
            offset = batch[BASE_OFFSET] + offset_delta
            timestamp = batch[MAX_TIMESTAMP] if log_append_time else batch[BASE_TIMESTAMP] + delta
            if is_wanted(offset, timestamp, parameters):
                held = keys + values + state[HEADER_KEY_BYTES] + state[HEADER_VALUE_BYTES]
                status = room_for(size, rows, held, state, parameters)
                if status == DONE and want_headers:
                    status = put_headers(
                        data, headers_at, after, rows, state,
                        header_ends, header_valid, header_key_ends, header_key_data,
                        header_value_ends, header_value_valid, header_value_data,
                    )  # fmt: skip
                if status != DONE:
                    break
                if want_key:
                    keys = put(key_ends, key_valid, key_data, rows, keys, data, key_at, key_length)
                    state[NULL_KEYS] += key_length < 0
                if want_value:
                    values = put(value_ends, value_valid, value_data, rows, values, data, value_at, value_length)
                    state[NULL_VALUES] += value_length < 0
                offsets[rows] = offset
                timestamps[rows] = max(FAR_PAST_MS, min(FAR_FUTURE_MS, timestamp)) * 1000
                timestamp_types[rows] = log_append_time
                rows += 1
            position = after
            done += 1
        state[AT_POSITION], state[AT_RECORD] = position, done
        if status != DONE:
            break
        state[AT_BATCH] += 1
        state[AT_RECORD] = 0
    state[ROWS], state[KEY_BYTES], state[VALUE_BYTES] = rows, keys, values
    return status
