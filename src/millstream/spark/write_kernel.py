"""Encoding loops: columns to the records section of a batch, and keys to partitions.

Partitions are chosen as by Kafka's Java producer (murmur2 of the key, KIP-480's sticky choice for rows without a key),
so that all producers agree on the partition of a key.
"""

# ruff: noqa: ANN001, ANN201 (types are stated once, in the signatures for the compiler)
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedFunctionDecorator=false

from typing import Any

import numpy as np
from numba import types

from millstream.spark.compiled import compiled, copy, inlined

_BYTES: Any = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_BYTES: Any = types.Array(types.uint8, 1, "C")
_I32: Any = types.Array(types.int32, 1, "C", readonly=True)
_OUT_I32: Any = types.Array(types.int32, 1, "C")
_I64: Any = types.Array(types.int64, 1, "C", readonly=True)

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)

NO_PARTITION = -1
"""A row without a partition of its own."""


@inlined
def is_set(valid, row):
    """Whether a row is not null. Without a mask no row is null."""
    return valid.shape[0] == 0 or (valid[row >> 3] >> (row & 7)) & 1 == 1


@inlined
def murmur2(data, start, end):
    """Kafka's hash of a key, as an unsigned 32-bit number."""
    length = end - start
    h = np.uint32(np.uint32(length) ^ _SEED)
    at = start
    while end - at >= 4:
        k = (
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        k = np.uint32(k * _M)
        k = np.uint32(k ^ (k >> np.uint32(24)))
        k = np.uint32(k * _M)
        h = np.uint32(np.uint32(h * _M) ^ k)
        at += 4
    if end - at == 3:
        h = np.uint32(h ^ (np.uint32(data[at + 2]) << np.uint32(16)))
    if end - at >= 2:
        h = np.uint32(h ^ (np.uint32(data[at + 1]) << np.uint32(8)))
    if end - at >= 1:
        h = np.uint32(h ^ np.uint32(data[at]))
        h = np.uint32(h * _M)
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * _M)
    return np.uint32(h ^ (h >> np.uint32(15)))


@compiled(types.void(_I32, _BYTES, _BYTES, types.int64, types.int64, _OUT_I32))
def choose_partitions(key_ends, key_valid, key_data, count, sticky, partitions):
    """Replaces ``NO_PARTITION`` in ``partitions``: by key, or by ``sticky`` for rows without a key."""
    for row in range(partitions.shape[0]):
        if partitions[row] != NO_PARTITION:
            continue
        if is_set(key_valid, row):
            positive = np.int64(murmur2(key_data, np.int64(key_ends[row]), np.int64(key_ends[row + 1]))) & 0x7FFFFFFF
            partitions[row] = positive % count
        else:
            partitions[row] = sticky


@inlined
def varint_size(value):
    """Size of a zigzag varint in bytes."""
    left = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while left > np.uint64(127):
        left >>= np.uint64(7)
        size += 1
    return size


@inlined
def put_varint(out, at, value):
    """Writes a zigzag varint, and returns the position after it."""
    left = np.uint64((value << 1) ^ (value >> 63))
    while left > np.uint64(127):
        out[at] = np.uint8((left & np.uint64(127)) | np.uint64(128))
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@inlined
def put_field(out, at, ends, valid, data, row):
    """Writes a length and its bytes, or length -1 for null, and returns the position after them."""
    if not is_set(valid, row):
        return put_varint(out, at, -1)
    start = np.int64(ends[row])
    size = np.int64(ends[row + 1]) - start
    at = put_varint(out, at, size)
    copy(out, at, data, start, size)
    return at + size


@inlined
def field_size(ends, valid, row):
    """Size that ``put_field`` writes, in bytes."""
    if not is_set(valid, row):
        return 1
    size = np.int64(ends[row + 1]) - np.int64(ends[row])
    return size + varint_size(size)


@compiled(
    types.UniTuple(types.int64, 2)(
        _I64, types.int64, types.int64, _I64,
        _I32, _BYTES, _BYTES, _I32, _BYTES, _BYTES,
        _I32, _BYTES, _I32, _BYTES, _I32, _BYTES, _BYTES,
        _OUT_BYTES,
    )
)  # fmt: skip
def write_records(
    rows, first, limit, timestamps,
    key_ends, key_valid, key_data, value_ends, value_valid, value_data,
    header_ends, header_valid, header_key_ends, header_key_data,
    header_value_ends, header_value_valid, header_value_data,
    out,
):  # fmt: skip
    """Writes records of ``rows[first:]`` up to ``limit`` bytes, at least one.

    Timestamps are relative to that of the first record; without any all records have the batch's. Returns (records
    written, bytes), or (0, bytes needed) if ``out`` is too small for a single record.
    """
    nothing = header_valid[:0]
    at = 0
    count = 0
    while first + count < rows.shape[0]:
        row = rows[first + count]
        headers_from = np.int64(0)
        headers_to = np.int64(0)
        if header_ends.shape[0] > 0 and is_set(header_valid, row):
            headers_from = np.int64(header_ends[row])
            headers_to = np.int64(header_ends[row + 1])
        delta = np.int64(0)
        if timestamps.shape[0] > 0:
            delta = timestamps[row] - timestamps[rows[first]]
        size = (
            1
            + varint_size(delta)
            + varint_size(count)
            + field_size(key_ends, key_valid, row)
            + field_size(value_ends, value_valid, row)
        )
        size += varint_size(headers_to - headers_from)
        for header in range(headers_from, headers_to):
            size += field_size(header_key_ends, nothing, header)
            size += field_size(header_value_ends, header_value_valid, header)
        if count > 0 and at + size + 5 > limit:
            break
        if at + size + 5 > out.shape[0]:
            return 0, size + 5
        at = put_varint(out, at, size)
        out[at] = 0  # attributes
        at = put_varint(out, at + 1, delta)
        at = put_varint(out, at, count)
        at = put_field(out, at, key_ends, key_valid, key_data, row)
        at = put_field(out, at, value_ends, value_valid, value_data, row)
        at = put_varint(out, at, headers_to - headers_from)
        for header in range(headers_from, headers_to):
            at = put_field(out, at, header_key_ends, nothing, header_key_data, header)
            at = put_field(out, at, header_value_ends, header_value_valid, header_value_data, header)
        count += 1
    return count, at


_MIX = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xD6E8FEB86659FD93)


@inlined
def mixed(h, word):
    """A hash with eight more bytes in it: multiply and fold, as in xxHash."""
    h = (h ^ word) * _MIX
    return h ^ (h >> np.uint64(29))


@inlined
def hash_field(h, ends, valid, data, row):
    """A hash with the bytes, and the length, of one field in it."""
    if not is_set(valid, row):
        return mixed(h, _NULL)
    at = np.uint64(ends[row])
    end = np.uint64(ends[row + 1])
    h = mixed(h, end - at)
    while at + np.uint64(8) <= end:
        word = np.uint64(0)
        for index in range(8):
            word |= np.uint64(data[at + np.uint64(index)]) << np.uint64(8 * index)
        h = mixed(h, word)
        at += np.uint64(8)
    word = np.uint64(0)
    while at < end:
        word = (word << np.uint64(8)) | np.uint64(data[at])
        at += np.uint64(1)
    return mixed(h, word)


@compiled(
    types.uint64(
        types.int64,
        _I32, _BYTES, _BYTES, _I32, _BYTES, _BYTES,
        _I32, _BYTES, _I32, _BYTES, _I32, _BYTES, _BYTES,
    )
)  # fmt: skip
def sum_of_hashes(
    count,
    key_ends, key_valid, key_data, value_ends, value_valid, value_data,
    header_ends, header_valid, header_key_ends, header_key_data,
    header_value_ends, header_value_valid, header_value_data,
):  # fmt: skip
    """The sum, modulo 2**64, of a hash of each row: the same for the same rows in any order."""
    nothing = header_valid[:0]
    total = np.uint64(0)
    for row in range(count):
        h = hash_field(_MIX, key_ends, key_valid, key_data, row)
        h = hash_field(h, value_ends, value_valid, value_data, row)
        if header_ends.shape[0] > 0 and is_set(header_valid, row):
            for header in range(np.int64(header_ends[row]), np.int64(header_ends[row + 1])):
                h = hash_field(h, header_key_ends, nothing, header_key_data, header)
                h = hash_field(h, header_value_ends, header_value_valid, header_value_data, header)
        total += mixed(h, _NULL)
    return total
