"""A ``.producers`` file: the state of a partition's idempotent producers at one offset.

It is named by that offset, like segment files. The payload is the partition's own encoding and opaque here. Reading the
newest file within the log, then the batch headers after it, rebuilds the state without reading the log from its start.
A file with a wrong checksum, or under another name, is ``Corruption``, and the reader uses the one before.
"""

import struct
from typing import Final

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.model.quantities import Offset

MAGIC: Final = b"MSPS"
VERSION: Final = 1
_OFFSET: Final = struct.Struct("<q")


def encode_producers(offset: Offset, payload: bytes) -> bytes:
    """The file of the state at ``offset`` (exclusive: it contains every batch below)."""
    return seal(MAGIC, VERSION, _OFFSET.pack(offset) + payload)


def decode_producers(offset: Offset, data: bytes | bytearray) -> bytes:
    """The payload of the file named by ``offset``. Raises Corruption."""
    content = unseal(MAGIC, VERSION, data)
    if len(content) < _OFFSET.size or _OFFSET.unpack_from(content)[0] != offset:
        raise Corruption(f"a producer snapshot of another offset than {offset}")
    return content[_OFFSET.size :]
