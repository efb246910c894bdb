"""Validator, PartitionSelector, Serializer, ThreadPool and DataDescriptor of the interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from millstream.diaspora.errors import Exception, translated  # noqa: A004 (the name of the interface)
from millstream.events import (
    DataDescriptor as StoredDescriptor,
)
from millstream.events import (
    Segment,
    StrideView,
    SubView,
    UnstructuredView,
    make_selector,
    make_serializer,
    make_validator,
)
from millstream.model.events import DataPosition

AdaptiveBatchSize: Final = (1 << 64) - 1
"""A batch is what came while the last one was sent."""


class Ordering(Enum):
    """Whether the events of one producer keep their order."""

    Strict = "strict"
    Loose = "loose"


def _description(args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """A description given as an object, as keywords, or both."""
    found: dict[str, Any] = {}
    for one in args:
        if not isinstance(one, Mapping):
            raise Exception(f"metadata are an object, not {one!r}")
        found.update(one)
    return {**found, **options}


class Validator:
    """Accepts or refuses events. ``from_metadata`` makes one."""

    def __init__(self, made: Any) -> None:
        self.made = made

    @classmethod
    @translated
    def from_metadata(cls, *args: Mapping[str, Any], **options: Any) -> Validator:
        """The validator of a description: ``type`` is ``default``, ``schema`` or ``eventbridge``."""
        return cls(make_validator(_description(args, options)))


class PartitionSelector:
    """Chooses partitions. ``from_metadata`` makes one."""

    def __init__(self, made: Any) -> None:
        self.made = made

    @classmethod
    @translated
    def from_metadata(cls, *args: Mapping[str, Any], **options: Any) -> PartitionSelector:
        """The selector of a description: ``type`` is ``default`` or ``key``."""
        return cls(make_selector(_description(args, options)))


class Serializer:
    """Writes metadata as bytes. ``from_metadata`` makes one."""

    def __init__(self, made: Any) -> None:
        self.made = made

    @classmethod
    @translated
    def from_metadata(cls, *args: Mapping[str, Any], **options: Any) -> Serializer:
        """The serializer of a description: ``type`` is ``default`` or ``schema``."""
        return cls(make_serializer(_description(args, options)))


class ThreadPool:
    """Threads that scripts ask for. The client has threads of its own; a pool only remembers its number."""

    def __init__(self, count: int = 1) -> None:
        if count < 0:
            raise Exception(f"a pool of {count} threads")
        self.thread_count = count


class DataDescriptor:
    """The data of an event, or a selection of them."""

    def __init__(self, location: Any = "", size: int = 0) -> None:
        self.location = location
        self.stored = StoredDescriptor(location.encode() if isinstance(location, str) else bytes(location), size)

    @classmethod
    def of(cls, stored: StoredDescriptor, location: Any = None) -> DataDescriptor:
        """Around a descriptor of this store."""
        made = cls.__new__(cls)
        made.stored = stored
        made.location = stored.location if location is None else location
        return made

    @property
    def size(self) -> int:
        """Number of selected bytes."""
        return self.stored.size

    @translated
    def flatten(self) -> list[tuple[int, int]]:
        """The selected ranges of the data: offset and size."""
        return [(one.offset, one.size) for one in self.stored.flatten()]

    def make_sub_view(self, offset: int, size: int) -> DataDescriptor:
        """``size`` bytes of the selection from ``offset`` on, or fewer at its end."""
        return self._narrowed(SubView(DataPosition(offset), size))

    def make_stride_view(
        self,
        offset: int,
        num_blocks: int | None = None,
        block_size: int | None = None,
        gap_size: int | None = None,
        *,
        numblocks: int | None = None,
        blocksize: int | None = None,
        gapsize: int | None = None,
    ) -> DataDescriptor:
        """``num_blocks`` blocks of ``block_size`` bytes of the selection with gaps of ``gap_size`` between them."""
        count, block, gap = (
            new if new is not None else old
            for new, old in ((num_blocks, numblocks), (block_size, blocksize), (gap_size, gapsize))
        )
        if count is None or block is None or gap is None:
            raise TypeError("make_stride_view needs offset, num_blocks, block_size and gap_size")
        return self._narrowed(StrideView(DataPosition(offset), count, block, gap))

    make_strided_view = make_stride_view

    def make_unstructured_view(self, segments: Sequence[tuple[int, int]]) -> DataDescriptor:
        """Ranges of the selection, in order and not overlapping: offset and size."""
        return self._narrowed(UnstructuredView(tuple(Segment(DataPosition(at), size) for at, size in segments)))

    @translated
    def _narrowed(self, view: Any) -> DataDescriptor:
        return DataDescriptor.of(self.stored.narrowed(view), self.location)


def FullDataSelector(metadata: Any, descriptor: DataDescriptor) -> DataDescriptor:  # noqa: N802 (the interface's name)
    """Selects all data."""
    del metadata
    return descriptor


def ByteArrayAllocator(metadata: Any, descriptor: DataDescriptor) -> list[bytearray]:  # noqa: N802 (likewise)
    """One bytearray of the selection's size."""
    del metadata
    return [bytearray(descriptor.size)]
