"""Who runs a topic's pipeline: the member of the group ``__pipeline.TOPIC`` that holds its only partition.

The group subscribes to ``__pipelines``, which has one partition, so one member holds it and the others stand by. The
broker takes it from a member that is silent for the session timeout. A process that starts again within that time has
the same instance id, and continues at once. The offsets that are committed for the group are those of the *topic*: so
every tool that shows the lag of a group shows how far behind the table is.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from millstream.client.security import PLAIN, Security, to_librdkafka
from millstream.errors import Unavailable
from millstream.model.pipelines import PIPELINES, RUNNER_GROUP

_SESSION_MS: Final = 10_000


class ClaimLost(Unavailable):
    """The group does not take this member back: another process has its instance id. A new claim may be made."""


class Claim:
    """The membership of one process for one topic. One thread polls it, at least every few minutes."""

    def __init__(self, brokers: str, topic: str, instance: str, security: Security = PLAIN) -> None:
        """Join the group. ``instance`` names this process, and the one that it is after a restart."""
        self.held = False
        self._ended: Any = None
        self._consumer = Consumer(
            {
                **to_librdkafka(security),
                "bootstrap.servers": brokers,
                "group.id": f"{RUNNER_GROUP}{topic}",
                "group.instance.id": instance,
                "client.id": "millstream-pipeline-serve",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 4,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "partition.assignment.strategy": "cooperative-sticky",
                "error_cb": self._on_error,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([PIPELINES], on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone)

    def poll(self, timeout_s: float) -> bool:
        """Whether this process holds the claim now; waits so long for the broker to say something.

        Raises:
            ClaimLost: the membership has ended.
        """
        try:
            message = self._consumer.poll(timeout_s)
        except KafkaException as error:
            raise self._refused(error.args[0]) from error
        failed = message.error() if message is not None else None
        if failed is not None:
            self._on_error(failed)
        if self._ended is not None:
            raise self._refused(self._ended)
        return self.held

    def commit(self, topic: str, offsets: Mapping[str, int]) -> None:
        """Say how far the table is; sent when the next poll comes, and lost without harm."""
        if self.held and offsets:
            places = [TopicPartition(topic, int(partition), offset) for partition, offset in offsets.items()]
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=places, asynchronous=True)

    def close(self) -> None:
        """Give the claim up; another process has it after the session timeout, the same instance at once."""
        self.held = False
        with contextlib.suppress(KafkaException):  # of a member that was refused
            self._consumer.unsubscribe()
        self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        if partitions:
            consumer.incremental_assign(partitions)
            consumer.pause(partitions)
            self.held = True

    def _on_error(self, error: Any) -> None:
        # A fatal error comes once, as the code of its kind or as this one, to the callback or as a message.
        if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):
            self._ended = error

    def _gone(self, consumer: Any, partitions: list[Any]) -> None:
        if partitions:
            self.held = False
            consumer.incremental_unassign(partitions)

    def _refused(self, error: Any) -> ClaimLost:
        self.held = False
        return ClaimLost(f"the group that says who runs a topic's table refuses this process: {error.str()}")
