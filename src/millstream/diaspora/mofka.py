"""The names of ``mochi.mofka.client``, as scripts for Mofka up to 0.7 use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.diaspora.api import (
    AdaptiveBatchSize,
    ByteArrayAllocator,
    ClientException,
    Consumer,
    DataDescriptor,
    Driver,
    Event,
    Exception,  # noqa: A004 (the name of the interface)
    FullDataSelector,
    Ordering,
    PartitionSelector,
    Producer,
    Serializer,
    ThreadPool,
    TopicHandle,
    Validator,
)
from millstream.diaspora.ignored import warn_ignored


class MofkaDriver(Driver):
    """A driver. Partitions come with their topic here: what adds one checks that the topic is there."""

    def __init__(self, group_file: str = "", engine: Any = None, **options: Any) -> None:
        """``group_file`` or ``bootstrap`` say where the brokers are; an engine warns that it has no effect."""
        warn_ignored("MofkaDriver", [] if engine is None else ["engine"])
        chosen = {**options, **({"group_file": group_file} if group_file else {})}
        super().__init__("mofka", chosen)

    @classmethod
    def _again(cls, backend: str, options: Mapping[str, Any]) -> Driver:
        del backend
        return cls(**options)

    @property
    def num_servers(self) -> int:
        """Number of addresses that were given."""
        return len(self._client.bootstrap.split(","))

    def start_progress_thread(self) -> None:
        """There is one already."""

    def add_memory_partition(self, topic_name: str, server_rank: int = 0, pool_name: str = "", **given: Any) -> None:
        """A topic has its partitions from its creation. Exception if there is no such topic. Its partitions keep
        events in chunk files, by any of these calls; other arguments warn.
        """
        del server_rank  # each script gives one, and brokers share out partitions themselves
        warn_ignored("add_partition", [*given, *(["pool_name"] if pool_name else [])])
        self.open_topic(topic_name)

    def add_default_partition(self, topic_name: str, server_rank: int = 0, *args: Any, **given: Any) -> None:
        """As ``add_memory_partition``."""
        warn_ignored("add_partition", ["config"] if args else [])
        self.add_memory_partition(topic_name, server_rank, **given)

    add_legacy_partition = add_default_partition
    add_custom_partition = add_default_partition

    def add_default_metadata_provider(self, *_args: Any, **_: Any) -> str:
        """There is none to add; the empty text stands for it."""
        return ""

    add_metadata_provider = add_default_metadata_provider
    add_default_data_provider = add_default_metadata_provider
    add_data_provider = add_default_metadata_provider


__all__ = [
    "AdaptiveBatchSize",
    "ByteArrayAllocator",
    "ClientException",
    "Consumer",
    "DataDescriptor",
    "Driver",
    "Event",
    "Exception",
    "FullDataSelector",
    "MofkaDriver",
    "Ordering",
    "PartitionSelector",
    "Producer",
    "Serializer",
    "ThreadPool",
    "TopicHandle",
    "Validator",
]
