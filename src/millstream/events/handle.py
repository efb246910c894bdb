"""A topic as a program holds it: what makes producers and consumers, and ends the topic."""

from __future__ import annotations

from typing import Any

from millstream.events.consumer import Consumer
from millstream.events.producer import Producer
from millstream.events.topic import Ends, TopicFacts


class Topic(TopicFacts):
    """An open topic. ``EventsClient.open_topic`` makes one. Safe for threads."""

    def producer(self, name: str = "", **options: Any) -> Producer:
        """A producer; the options are those of ``Producer``."""
        return Producer(self, name, **options)

    def consumer(self, name: str, **options: Any) -> Consumer:
        """A consumer; the options are those of ``Consumer``."""
        return Consumer(self, name, **options)

    def complete(self) -> None:
        """Let the topic end: feeds of consumers end after the last event."""
        self.engine.start(self.cluster.complete(self.name)).result()

    def end_ids(self) -> dict[int, Ends]:
        """First and next id of each partition."""
        return self.engine.start(self.ends()).result()
