"""The headers of batches that were read."""

from collections.abc import Iterator

from millstream.iobuf import IoBuf
from millstream.wire.batch import HEADER_BYTES, OVERHEAD_BYTES, unpack_header


def batch_headers(data: IoBuf) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Where each batch starts in ``data``, which holds whole ones, and its 13 fields as of ``unpack_header``."""
    position, size = 0, len(data)
    while size - position >= HEADER_BYTES:
        header = unpack_header(data.copy(position, HEADER_BYTES))
        yield position, header
        position += header[1] + OVERHEAD_BYTES
