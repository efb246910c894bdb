"""The protocol of an object store, and the rules for keys that all stores share.

**Keys** are names with ``/`` between parts, such as ``topics/t1/3/00000000000000000000.log``. A part is not empty, does
not start with a dot, has no control character and at most 200 bytes; a key has at most 900 bytes. A key is never a
folder of another key. These are the rules of the strictest store, so that a bucket can be copied to any other.

**Versions** are opaque and change with every change of the object's bytes. ``put`` compares them, atomically for all
clients of the store: of several writers that expect the same version, one succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NewType, Protocol

import msgspec

from millstream.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.model.quantities import FilePosition, TimestampMs

    Buffer = bytes | bytearray | memoryview

ObjectKey = NewType("ObjectKey", str)
"""Name of an object, relative to the URL of its store."""

Version = NewType("Version", str)
"""Opaque version of an object's content; never empty but for ``ABSENT``."""

ABSENT: Final = Version("")
"""As the expected version of a ``put``: the object must not exist."""

PART_BYTES_MAX: Final = 200
KEY_BYTES_MAX: Final = 900


class ObjectInfo(msgspec.Struct, frozen=True):
    """What a store says of an object without its bytes."""

    key: ObjectKey
    size_bytes: int
    version: Version
    modified_ms: TimestampMs


class ObjectStore(Protocol):
    """A store. Every call blocks and is safe for threads.

    Every call may raise ``Unavailable`` (``Throttled``), ``Denied``, or ``Rejected`` for a key against the rules.
    """

    @property
    def url(self) -> str:
        """The store in errors and logs; without credentials."""
        ...

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        """Write a whole object, durably, in one step. Returns its version. The buffers are free after the return.

        Args:
            expect: None: replace what is there. ``ABSENT``: the object must not exist. Else its present version.

        Raises:
            Conflict: the expectation does not hold. Nothing changed.
            OutcomeUnknown: the object may have been written.
        """
        ...

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        """Write a large object with bounded memory: in several requests where the store has multipart uploads. Nothing
        is visible before the end. An error of the iterator cancels the upload and is raised. Errors as in ``put``.
        """
        ...

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        """The bytes ``[start, end)``, exactly. Raises NotFound, or ShortRead if the object ends earlier."""
        ...

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        """Size and version; None if there is no such object."""
        ...

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """The objects below ``folder`` (empty, or ends with ``/``) with keys greater than ``after``, in key order.

        Objects that change during the listing may or may not be in it.
        """
        ...

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        """Remove objects. A missing one is no error. After an error some may be removed, so the caller repeats it."""
        ...

    def close(self) -> None: ...


def check_key(key: str) -> None:
    """Raises Rejected for a key against the rules of this module."""
    problem = "is too long" if len(key.encode()) > KEY_BYTES_MAX else ""
    for part in key.split("/"):
        if not part or part.startswith("."):
            problem = "has an empty part, or one that begins with a dot"
        elif len(part.encode()) > PART_BYTES_MAX:
            problem = f"has a part of more than {PART_BYTES_MAX} bytes"
        elif not part.isprintable() or "\\" in part:
            problem = "has a control character or a backslash"
    if problem:
        raise Rejected(f"the object key {key[:KEY_BYTES_MAX]!r} {problem}")


def check_folder(folder: str) -> None:
    """Raises Rejected for a folder that is neither empty nor a legal key followed by ``/``."""
    if folder:
        if not folder.endswith("/"):
            raise Rejected(f"the object folder {folder!r} does not end with a slash")
        check_key(folder[:-1])


def check_range(key: ObjectKey, start: FilePosition, end: FilePosition) -> None:
    """Raises Rejected for a range that is empty or starts before the object."""
    if not 0 <= start < end:
        raise Rejected(f"the range {start}–{end} of the object {key} is empty or begins before the object")
