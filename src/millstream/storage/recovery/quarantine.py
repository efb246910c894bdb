"""What a start puts aside (``.quarantined``): the batches that the write-ahead log still holds of a log that is fenced.

These batches can no longer be placed in the log, and the files of the write-ahead log are reused. A person decides
about them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.names import QUARANTINED_SUFFIX, offset_name
from millstream.model.quantities import Offset
from millstream.storage.disk import make_directories, write_all

if TYPE_CHECKING:
    from millstream.storage.disk import Disk


class QuarantinedBatches:
    """The file of one log, named by the first batch in it; made when there is one."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = ""
        self._bytes = 0

    def put(self, base_offset: Offset, batch: memoryview) -> None:
        """Add a batch."""
        if not self._path:
            make_directories(self._disk, self._directory)
            self._path = f"{self._directory}/{offset_name(base_offset, QUARANTINED_SUFFIX)}"
        file = self._disk.open(self._path, create=True)
        try:
            if not self._bytes:
                file.truncate(0)
            self._bytes += write_all(file, [batch], self._bytes)
        finally:
            file.close()
