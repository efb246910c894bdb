"""A small file that is read whole: four bytes that say what it is, a version, a length, a checksum, the payload.

::

    0    4        6   8        12      16
    │magic│version│ 0 │ length │ CRC-32C │ payload … │        little-endian; the CRC covers everything but itself

Such files are only ever replaced (temporary file, sync, rename), so a crash leaves the old or the new one. Anything
that does not match is `Corruption`: a shortened file, a flipped bit, a file of another kind, a version that this code
does not know.
"""

import struct
from typing import Final

from crc32c import crc32c

from millstream.errors import Corruption

_HEADER: Final = struct.Struct("<4sHHII")
_CRC_AT: Final = 12


def seal(magic: bytes, version: int, payload: bytes) -> bytes:
    """The bytes of a file with this payload."""
    head = _HEADER.pack(magic, version, 0, len(payload), 0)
    crc = crc32c(payload, crc32c(head[:_CRC_AT]))
    return head[:_CRC_AT] + crc.to_bytes(4, "little") + payload


def unseal(magic: bytes, version: int | range, data: bytes | bytearray | memoryview) -> bytes:
    """The payload of a file that `seal` made with this version, or with one of these.

    Raises:
        Corruption: these are not the bytes of such a file.
    """
    if len(data) < _HEADER.size:
        raise Corruption(f"{len(data)} bytes are too few for a {magic.decode('latin-1')} file")
    found_magic, found_version, _, length, crc = _HEADER.unpack_from(data, 0)
    if found_magic != magic:
        raise Corruption(f"starts with {found_magic!r} where {magic!r} was expected")
    payload = bytes(data[_HEADER.size :])
    if length != len(payload) or crc32c(payload, crc32c(bytes(data[:_CRC_AT]))) != crc:
        raise Corruption(f"a {magic.decode('latin-1')} file does not match its checksum")
    versions = range(version, version + 1) if isinstance(version, int) else version
    if found_version not in versions:
        readable = " to ".join(dict.fromkeys((str(versions[0]), str(versions[-1]))))
        raise Corruption(f"a {magic.decode('latin-1')} file of version {found_version}, this code reads {readable}")
    return payload


def version_of(data: bytes | bytearray | memoryview) -> int:
    """The version of a file that `unseal` has accepted."""
    return _HEADER.unpack_from(data, 0)[1]
