"""Where tables are: a directory of this machine, or of any file system that an address names.

A relative path is relative to the pipeline's file. An address such as ``s3://bucket/path`` is opened by pyarrow with
the credentials of the environment; driver and workers have to be able to open it, and so has the table's library.
"""

import os
import re
from typing import Any, Final

from pyarrow import fs

from millstream.errors import Unavailable
from millstream.pipeline.model import Pipeline

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://")


class Location:
    """A directory and the file system that it is on. Values only: it travels to workers."""

    def __init__(self, address: str) -> None:
        """``address`` is absolute: a path or a URI."""
        self.address = address.rstrip("/")

    def __truediv__(self, name: str) -> "Location":
        return Location(f"{self.address}/{name}")

    @property
    def is_local(self) -> bool:
        return not _ADDRESS.match(self.address)

    def open(self) -> tuple[Any, str]:
        """The file system and the path on it."""
        if self.is_local:
            return fs.LocalFileSystem(), self.address
        return fs.FileSystem.from_uri(self.address)

    def make(self) -> None:
        """Create the directory, and those above it.

        Raises:
            Unavailable: that is not possible.
        """
        filesystem, path = self.open()
        try:
            filesystem.create_dir(path, recursive=True)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise Unavailable(f"the directory {self.address} cannot be made: {reason}") from error

    def remove(self) -> None:
        """Remove the directory with everything in it; nothing happens if it is not there."""
        filesystem, path = self.open()
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            filesystem.delete_dir(path)

    def files(self, suffix: str) -> list[str]:
        """Names of the files right in it that end so, in order; empty if it is not there."""
        filesystem, path = self.open()
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.is_file and info.base_name.endswith(suffix))

    def read(self, name: str) -> bytes:
        filesystem, path = self.open()
        with filesystem.open_input_stream(f"{path}/{name}") as stream:
            return stream.read()

    def remove_file(self, name: str) -> None:
        filesystem, path = self.open()
        filesystem.delete_file(f"{path}/{name}")

    def write(self, name: str, content: bytes, *, sync: bool = False) -> None:
        """Write a file; on this machine's disks it appears whole or not at all, and with ``sync`` outlives a crash."""
        filesystem, path = self.open()
        temporary = f".new-{os.getpid()}-{name}" if self.is_local else name
        with filesystem.open_output_stream(f"{path}/{temporary}") as stream:
            stream.write(content)
        if self.is_local:
            if sync:
                _sync(f"{path}/{temporary}")
            os.replace(f"{path}/{temporary}", f"{path}/{name}")
            if sync:
                _sync(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def absolute(target: str, directory: str) -> str:
    """A declared path or address, made absolute."""
    if _ADDRESS.match(target):
        if target.startswith("file://"):
            return absolute(target.removeprefix("file://"), directory)
        return target.rstrip("/")
    return os.path.normpath(os.path.join(directory, os.path.expanduser(target)))


def state_directory(pipeline: Pipeline, directory: str) -> str:
    """Where a pipeline keeps its checkpoints."""
    if pipeline.state is not None:
        return os.path.join(directory, os.path.expanduser(pipeline.state))
    return os.path.join(directory, ".millstream", pipeline.pipeline)
