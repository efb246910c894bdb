"""The names of ``diaspora_stream.api``: Driver, TopicHandle, Producer, Consumer, Event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from millstream.diaspora.errors import (
    ClientException,
    Exception,  # noqa: A004 (the name of the interface)
    translated,
)
from millstream.diaspora.futures import FutureEvent, FutureFlushed, FutureUint
from millstream.diaspora.ignored import warn_ignored
from millstream.diaspora.rules import (
    AdaptiveBatchSize,
    ByteArrayAllocator,
    DataDescriptor,
    FullDataSelector,
    Ordering,
    PartitionSelector,
    Serializer,
    ThreadPool,
    Validator,
)
from millstream.events import Event as StoredEvent
from millstream.events import EventsClient, Topic
from millstream.events import Ordering as StoredOrdering

BACKENDS: Final = ("mofka", "millstream")
"""Names of backends that mean this store."""

_DRIVER_OPTIONS: Final = {"bootstrap", "bootstrap.servers", "group_file"}


class Driver:
    """A cluster with event topics."""

    def __init__(self, backend: str = "millstream", options: Mapping[str, Any] | None = None) -> None:
        """Connect lazily.

        Args:
            backend: ``mofka`` or ``millstream``; a library after a colon is ignored.
            options: ``bootstrap``: ``host:port`` of brokers. Or ``group_file``: a JSON file with them, as Mofka has it.

        Raises:
            Exception: the backend is unknown, or there is no address.
        """
        if backend.split(":", maxsplit=1)[0] not in BACKENDS:
            raise Exception(f"no backend {backend!r}; there is {' and '.join(BACKENDS)}")
        self.backend = backend
        self.options = dict(options or {})
        warn_ignored("Driver", self.options.keys() - _DRIVER_OPTIONS)
        self._client = _client(_bootstrap(self.options))
        self._pool = ThreadPool(0)

    @classmethod
    def new(cls, backend: str, options: Mapping[str, Any] | None = None) -> Driver:
        """The older spelling of the constructor."""
        return cls(backend, options)

    def __reduce__(self) -> tuple[Any, ...]:
        """A driver travels to another process as its options."""
        return type(self)._again, (self.backend, self.options)

    @classmethod
    def _again(cls, backend: str, options: Mapping[str, Any]) -> Driver:
        return cls(backend, options)

    @property
    def default_thread_pool(self) -> ThreadPool:
        """The pool of those who ask for none. It has no effect."""
        return self._pool

    def ignored_pool(self, pool: ThreadPool | None) -> list[str]:
        """The option ``thread_pool``, where it asks for another than the pool that is used without it."""
        return [] if pool is None or pool is self._pool else ["thread_pool"]

    def make_thread_pool(self, count: int = 1) -> ThreadPool:
        """A pool, which only remembers its number: it warns of any other than 0."""
        warn_ignored("make_thread_pool", ["count"] if count else [])
        return ThreadPool(count)

    @translated
    def create_topic(
        self,
        name: str = "",
        *,
        options: Mapping[str, Any] | None = None,
        validator: Validator | None = None,
        partition_selector: PartitionSelector | None = None,
        serializer: Serializer | None = None,
        schema: Mapping[str, Any] | None = None,
        topic_name: str = "",
    ) -> None:
        """Create a topic.

        Args:
            name: its name.
            options: ``num_partitions``, and ``config`` with the keys of a partition under ``partition``; others warn.
            validator: which events it accepts.
            partition_selector: where its events go.
            serializer: how its metadata are written.
            schema: a JSON Schema, short for a validator and a serializer of it.
            topic_name: older spelling of ``name``.
        """
        described = None if validator is None else validator.made.description
        written = None if serializer is None else serializer.made.description
        if schema is not None:
            described = described or {"type": "schema", "schema": dict(schema)}
            written = written or {"type": "schema", "schema": dict(schema)}
        given = dict(options or {})
        partition = _partition(given.get("config") or {})
        warn_ignored("create_topic", given.keys() - {"num_partitions", "config"})
        self._client.create_topic(
            name or topic_name,
            partitions_count=int(given.get("num_partitions", 1)),
            validator=described,
            selector=None if partition_selector is None else partition_selector.made.description,
            serializer=written,
            configs={"events.partition": json.dumps(partition)} if partition else None,
        )

    @translated
    def open_topic(self, name: str = "", *, topic_name: str = "") -> TopicHandle:
        """Open a topic. Raises Exception if it does not exist."""
        return TopicHandle(self, self._client.open_topic(name or topic_name))

    @translated
    def topic_exists(self, name: str = "", *, topic_name: str = "") -> bool:
        """Whether there is a topic of this name."""
        return self._client.topic_exists(name or topic_name)

    @translated
    def list_topics(self) -> dict[str, dict[str, Any]]:
        """Topics by name, with what is stored about them."""
        return self._client.list_topics()

    @translated
    def delete_topic(self, name: str) -> None:
        """Delete a topic with its events."""
        self._client.delete_topic(name)


class TopicHandle:
    """An open topic."""

    def __init__(self, driver: Driver, topic: Topic) -> None:
        self._driver = driver
        self._topic = topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicHandle) and other._topic.id == self._topic.id

    def __hash__(self) -> int:
        return hash(self._topic.id)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._topic.name

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """One object a partition."""
        return [
            {
                "partition": one,
                "uuid": self._topic.uuids[one].hex(),
                "address": self._driver.options.get("bootstrap", ""),
            }
            for one in self._topic.partitions
        ]

    def producer(
        self,
        name: str = "",
        batch_size: int = AdaptiveBatchSize,
        thread_pool: ThreadPool | None = None,
        ordering: Ordering = Ordering.Strict,
        *,
        max_num_batches: int = 2,
        options: Mapping[str, Any] | None = None,
        batchsize: int | None = None,
    ) -> Producer:
        """A producer. Options of Mofka's own machinery warn."""
        warn_ignored("producer", [*(options or {}), *self._driver.ignored_pool(thread_pool)])
        size = batch_size if batchsize is None else batchsize
        return Producer(self, self._driver, name, size, max_num_batches, ordering, thread_pool)

    def consumer(
        self,
        name: str,
        data_selector: Callable[..., Any] | None = None,
        data_allocator: Callable[..., Any] | None = None,
        batch_size: int = AdaptiveBatchSize,
        max_num_batches: int = 2,
        *,
        thread_pool: ThreadPool | None = None,
        targets: Sequence[int] | None = None,
        options: Mapping[str, Any] | None = None,
        data_broker: Callable[..., Any] | None = None,
        batchsize: int | None = None,
    ) -> Consumer:
        """A consumer. ``data_selector`` and ``data_allocator`` come together; options of Mofka's own machinery warn."""
        warn_ignored("consumer", [*(options or {}), *self._driver.ignored_pool(thread_pool)])
        size = batch_size if batchsize is None else batchsize
        allocator = data_allocator or data_broker
        return Consumer(self, self._driver, name, data_selector, allocator, size, max_num_batches, targets, thread_pool)

    @translated
    def mark_as_complete(self) -> None:
        """Let the topic end: consumers get the end after the last event."""
        self._topic.complete()

    @property
    def stored(self) -> Topic:
        """The topic of this store."""
        return self._topic


class Producer:
    """Pushes events."""

    @translated
    def __init__(
        self,
        topic: TopicHandle,
        driver: Driver,
        name: str,
        batch_size: int,
        max_num_batches: int,
        ordering: Ordering,
        thread_pool: ThreadPool | None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.batch_size = batch_size
        self.max_num_batches = max_num_batches
        self.thread_pool = thread_pool or driver.default_thread_pool
        self._producer = topic.stored.producer(
            name,
            batch_size=_size(batch_size),
            max_num_batches=max_num_batches,
            ordering=StoredOrdering.STRICT if ordering is Ordering.Strict else StoredOrdering.LOOSE,
        )

    @translated
    def push(self, metadata: Any = None, data: Any = b"", *, partition: int | None = None) -> FutureUint:
        """Hand over an event; its id comes later."""
        return FutureUint(self._producer.push({} if metadata is None else metadata, data, partition=partition), int)

    @translated
    def flush(self) -> FutureFlushed:
        """Send what was pushed."""
        return FutureFlushed(self._producer.flush(), _nothing)


class Consumer:
    """Pulls events."""

    @translated
    def __init__(
        self,
        topic: TopicHandle,
        driver: Driver,
        name: str,
        data_selector: Callable[..., Any] | None,
        data_allocator: Callable[..., Any] | None,
        batch_size: int,
        max_num_batches: int,
        targets: Sequence[int] | None,
        thread_pool: ThreadPool | None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.data_selector = data_selector
        self.data_allocator = data_allocator
        self.batch_size = batch_size
        self.max_num_batches = max_num_batches
        self.thread_pool = thread_pool or driver.default_thread_pool
        self._consumer = topic.stored.consumer(
            name,
            data_selector=None if data_selector is None else _selector(data_selector),
            data_allocator=None if data_allocator is None else _allocator(data_allocator),
            batch_size=_size(batch_size),
            max_num_batches=max_num_batches,
            targets=targets,
        )

    def __iter__(self) -> Iterator[Event]:
        """Events, until the topic is complete."""
        while True:
            event = self.pull().wait()
            assert event is not None, "a wait without a time ends with an event"
            if event.event_id is None:
                return
            yield event

    def __del__(self) -> None:
        """Dropping a consumer ends it."""
        consumer = getattr(self, "_consumer", None)
        if consumer is not None:
            consumer.stop()

    def pull(self) -> FutureEvent[Event]:
        """The next event, later; at the end of a completed topic one whose id is None."""
        return FutureEvent(self._consumer.pull_soon(), self._event)

    @translated
    def process(
        self,
        function: Callable[[Event], Any],
        *,
        timeout_ms: int = -1,
        max_events: int | None = None,
        thread_pool: ThreadPool | None = None,
    ) -> int:
        """Call a function with each event; returns how many there were."""
        warn_ignored("process", [] if thread_pool is None else ["thread_pool"])
        timeout_s = timeout_ms / 1000 if timeout_ms > 0 else None
        most = None if max_events is None or max_events >= AdaptiveBatchSize else max_events
        return self._consumer.process(lambda event: function(self._event(event)), timeout_s=timeout_s, max_events=most)

    def _event(self, event: StoredEvent) -> Event:
        return Event(self.topic, event)


class Event:
    """One event. At the end of a completed topic ``event_id`` is None."""

    def __init__(self, topic: TopicHandle, stored: StoredEvent) -> None:
        self._topic = topic
        self._stored = stored
        self.metadata = {} if stored.id is None else stored.metadata
        self.data = list(stored.data)
        self.event_id = stored.id

    @property
    def partition(self) -> dict[str, Any]:
        """The partition that it came from."""
        return {} if self.event_id is None else self._topic.partitions[self._stored.partition]

    @translated
    def acknowledge(self) -> None:
        """This event and all before it in its partition are done with; durable when this returns."""
        self._stored.acknowledge().result()


_clients: dict[str, EventsClient] = {}


def _client(bootstrap: str) -> EventsClient:
    """One client an address and process: drivers of a script share connections."""
    from millstream.events.engine import engine

    held = _clients.get(bootstrap)
    if held is None or held.engine is not engine():
        held = _clients[bootstrap] = translated(EventsClient)(bootstrap)
    return held


def _bootstrap(options: Mapping[str, Any]) -> str:
    """The addresses in a driver's options."""
    found = options.get("bootstrap") or options.get("bootstrap.servers")
    if found:
        return str(found)
    path = options.get("group_file")
    if not path:
        raise Exception("the options have no 'bootstrap' (host:port) and no 'group_file'")
    try:
        group = json.loads(Path(path).read_text(encoding="utf-8"))
        addresses = [str(one["address"]) for one in group["members"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Exception(f"{path} is no group file: {error}") from error
    return ",".join(one.rsplit("/", maxsplit=1)[-1] for one in addresses)


def _partition(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a partition in Mofka's configuration of a topic; the broker checks them."""
    own = {"partition", *(["type"] if config.get("type", "default") == "default" else [])}
    partition = dict(config.get("partition") or {})
    warn_ignored("create_topic", config.keys() - own)
    return partition


def _size(batch_size: int) -> int | None:
    return None if batch_size >= AdaptiveBatchSize or batch_size == 0 else batch_size


def _selector(function: Callable[..., Any]) -> Callable[..., Any]:
    def select(metadata: Any, descriptor: Any) -> Any:
        selected = function(metadata, DataDescriptor.of(descriptor))
        return None if selected is None else selected.stored

    return select


def _allocator(function: Callable[..., Any]) -> Callable[..., Any]:
    def allocate(metadata: Any, selected: Any) -> list[Any]:
        buffers = function(metadata, DataDescriptor.of(selected))
        return list(buffers) if isinstance(buffers, list | tuple) else [buffers]

    return allocate


def _nothing(_: object) -> None:
    """A flush has no result."""


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
    "FutureEvent",
    "FutureFlushed",
    "FutureUint",
    "Ordering",
    "PartitionSelector",
    "Producer",
    "Serializer",
    "ThreadPool",
    "TopicHandle",
    "Validator",
]
