"""A batch of records by its bytes, as tests of files need it; its body is no records."""

import struct

from crc32c import crc32c


def make_batch(base: int, body: bytes = b"payload", epoch: int = 0, delta: int = 0) -> bytes:
    covered = struct.pack(">hiqqqhii", 0, delta, 1000, 1000 + delta, -1, -1, -1, delta + 1) + body
    return struct.pack(">qiibI", base, 9 + len(covered), epoch, 2, crc32c(covered)) + covered
