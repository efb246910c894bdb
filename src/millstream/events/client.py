"""The client of event topics: creates, opens and lists them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self

from millstream.client.security import PLAIN, Security
from millstream.errors import MillstreamError
from millstream.events.cluster import EventCluster, json_text
from millstream.events.engine import engine
from millstream.events.handle import Topic
from millstream.events.selectors import make_selector
from millstream.events.serializers import make_serializer
from millstream.events.validators import make_validator


class EventsClient:
    """A cluster with event topics. Safe for threads. After a fork the child makes its own."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 30.0, security: Security = PLAIN) -> None:
        """Nothing is sent yet.

        Args:
            bootstrap: ``host:port`` of one or more brokers, separated by commas.
            timeout_s: limit of one call, repetitions included.
            security: TLS and login of every connection (``millstream.client.security.read_security``).
        """
        self.bootstrap = bootstrap
        self.security = security
        self.engine = engine()
        self.cluster = EventCluster(bootstrap, timeout_s, security)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """A client travels to another process as its addresses, limit and security."""
        return partial(EventsClient, timeout_s=self.cluster.timeout_s, security=self.security), (self.bootstrap,)

    def close(self) -> None:
        """Close the connections. Producers are closed by their users; a consumer that was left open leaves its group,
        and a pull from it raises an error.
        """
        self.engine.check()
        for consumer in list(self.cluster.consumers):
            with suppress(MillstreamError, TimeoutError):  # its broker may be gone
                consumer.close()
        self.engine.start(self.cluster.close()).result()

    def create_topic(
        self,
        name: str,
        *,
        partitions_count: int = 1,
        replicas_count: int = -1,
        validator: Mapping[str, Any] | None = None,
        selector: Mapping[str, Any] | None = None,
        serializer: Mapping[str, Any] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create an event topic.

        Args:
            name: its name.
            partitions_count: number of partitions.
            replicas_count: replicas of each; -1 leaves it to the broker.
            validator: description of the validator.
            selector: description of the partition selector.
            serializer: description of the serializer.
            configs: further topic properties.

        Raises:
            InvalidDescription: a description makes nothing.
            Rejected: the broker refuses the topic.
        """
        described = {
            "topic.kind": "events",
            "events.validator": json_text(make_validator(validator).description),
            "events.selector": json_text(make_selector(selector).description),
            "events.serializer": json_text(make_serializer(serializer).description),
        }
        work = self.cluster.create(name, partitions_count, replicas_count, {**described, **(configs or {})})
        self.engine.start(work).result()

    def open_topic(self, name: str, *, validator: Any = None, selector: Any = None, serializer: Any = None) -> Topic:
        """Open a topic. Callables may stand in for what is stored with it.

        Raises:
            Rejected: there is no such event topic.
        """
        described = self.engine.start(self.cluster.topic(name)).result()
        return Topic(
            self.engine, self.cluster, described, validator=validator, selector=selector, serializer=serializer
        )

    def topic_exists(self, name: str) -> bool:
        """Whether there is an event topic of this name. Errors other than that are raised."""
        return name in self.engine.start(self.cluster.topics([name])).result()

    def list_topics(self) -> dict[str, dict[str, Any]]:
        """All event topics: number of partitions, and the descriptions that are stored with them."""
        found = self.engine.start(self.cluster.topics(None)).result()
        return {
            name: {
                "partitions": len(one.partitions),
                "validator": one.validator,
                "selector": one.selector,
                "serializer": one.serializer,
                "complete": one.complete,
            }
            for name, one in sorted(found.items())
        }

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its events."""
        self.engine.start(self.cluster.delete(name)).result()
