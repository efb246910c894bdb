"""A ``.producers`` file: what a partition knew of its idempotent producers at one offset.

Named by that offset as the segment files are; the payload is the partition's own encoding and opaque here. Reading
the newest one that the log still covers, then the batch headers behind it, rebuilds the state without reading the log
from its start. A file that does not match its checksum, or was moved to another name, is `Corruption`: the reader
takes the one before.
"""

import struct
from typing import Final

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal

MAGIC: Final = b"MSPS"
VERSION: Final = 1
_OFFSET: Final = struct.Struct("<q")


def encode_producers(offset: int, payload: bytes) -> bytes:
    """The file for the state as of `offset` (exclusive: every batch below it is in)."""
    return seal(MAGIC, VERSION, _OFFSET.pack(offset) + payload)


def decode_producers(offset: int, data: bytes | bytearray) -> bytes:
    """The payload of the file that is named by `offset`; raises Corruption."""
    content = unseal(MAGIC, VERSION, data)
    if len(content) < _OFFSET.size or _OFFSET.unpack_from(content)[0] != offset:
        raise Corruption(f"a producer snapshot of another offset than {offset}")
    return content[_OFFSET.size :]
