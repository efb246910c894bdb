"""The topic in which a coordinator keeps its state, and how many of its partitions load on this shard."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.cluster.placement import ELSEWHERE
from millstream.cluster.topic_table import TopicMeta
from millstream.coordinator.hashing import partition_of
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.telemetry.log import RateLimit, log

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.shard.reactor import Reactor, Timer

_FAILURES_A_MINUTE: Final = 6

CREATE_US: Final = 2_000_000
"""A client has other requests after this one on its connection, whose answers wait too; it asks again soon."""


class StateTopic:
    """``__consumer_offsets`` or ``__transaction_state``, as one shard finds it. Lifecycle: one per router."""

    def __init__(
        self, name: str, metadata: "MetadataCache", controller: "ControllerClient", reactor: "Reactor"
    ) -> None:
        self._reactor = reactor
        self._name = name
        self._metadata = metadata
        self._controller = controller
        self._failures = RateLimit(_FAILURES_A_MINUTE)

    def ensure(self, done: Callable[[ErrorCode], None]) -> None:
        """Call ``done(NONE)`` when the topic exists. It is created if necessary; if that takes longer than `CREATE_US`,
        the answer is COORDINATOR_NOT_AVAILABLE, and the creation continues.
        """
        if self._metadata.topic(self._name) is not None:
            done(ErrorCode.NONE)
            return
        timer: Timer | None = None

        def ensured(topic: TopicMeta | MillstreamError) -> None:
            if isinstance(topic, MillstreamError) and self._failures.allows():
                more = self._failures.left_out()
                log.warning("%s could not be created: %s%s", self._name, topic.message, more)
            settle(ErrorCode.COORDINATOR_NOT_AVAILABLE if isinstance(topic, MillstreamError) else ErrorCode.NONE)

        def settle(error: ErrorCode) -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
                done(error)

        timer = self._reactor.call_later(CREATE_US, lambda: settle(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._controller.ensure_topic(self._name, ensured)

    def place(self, key: str) -> tuple[int, int | None]:
        """(partition, home shard or None) of a group or transactional id."""
        topic = self._metadata.topic(self._name)
        if topic is None:
            return 0, None
        partition = partition_of(key, len(topic.partitions))
        home = topic.partitions[partition].home_shard
        return partition, None if home == ELSEWHERE else home


class Loads:
    """Number of partitions that load."""

    def __init__(self) -> None:
        self._count = 0
        self.on_ended: Callable[[], None] = _nobody
        """Called whenever a partition loads no longer."""
        self._awaiting: list[Callable[[], None]] = []

    def began(self) -> None:
        """One more loads."""
        self._count += 1

    def ended(self) -> None:
        """One has loaded, has failed or was closed."""
        self._count -= 1
        self.on_ended()
        if not self._count:
            awaiting, self._awaiting = self._awaiting, []
            for done in awaiting:
                done()

    def when_none(self, done: Callable[[], None]) -> None:
        """Call ``done`` when no partition loads, maybe at once."""
        if self._count:
            self._awaiting.append(done)
        else:
            done()


def _nobody() -> None:
    """Nothing follows the loading."""
