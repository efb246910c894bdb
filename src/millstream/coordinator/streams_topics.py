"""Internal topics of streams groups: created beside the heartbeat that misses them.

The heartbeat is answered at once with MISSING_INTERNAL_TOPICS. When the member comes again, the topics are there, or
the reason why not. A topic is asked for once at a time. One that was refused is not asked for again for some time, in
which each heartbeat has the reason. Both are per shard. A topic that two shards ask for is created once; that it exists
is no failure.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millstream.core.controller.requests import CreateTopic, Results
from millstream.core.quota.mutations import MutationClient
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.shard.reactor import Reactor

FAILURES_MAX: Final = 1_000
"""Topics whose refusal is remembered, as in Kafka. Of more, the oldest are asked for again at once."""
CREATE_MS: Final = 30_000


class StreamsTopics:
    """Creates internal topics.

    Shard: one each.
    """

    def __init__(self, reactor: "Reactor", controller: "ControllerClient") -> None:
        self._reactor = reactor
        self._controller = controller
        self._in_flight: set[str] = set()
        self._failures: dict[str, tuple[int, str]] = {}
        """Topic → until when it is not asked for again (monotonic µs), and why."""

    def create(self, topics: Sequence[CreatableTopic], client: MutationClient | None, rest_ms: int) -> dict[str, str]:
        """Create topics that are missing, for ``client``. Returns why some of them could not be created before; these
        are asked for again ``rest_ms`` after their refusal.
        """
        now_us = self._reactor.now_us()
        failed: dict[str, str] = {}
        wanted: list[CreatableTopic] = []
        for topic in topics:
            until_us, why = self._failures.get(topic.name, (0, ""))
            if now_us < until_us:
                failed[topic.name] = why
            elif topic.name not in self._in_flight:
                wanted.append(topic)
        if wanted:
            self._ask(wanted, client, rest_ms)
        return failed

    def _ask(self, topics: Sequence[CreatableTopic], client: MutationClient | None, rest_ms: int) -> None:
        names = {topic.name for topic in topics}
        self._in_flight |= names

        def done(results: Results | MillstreamError) -> None:
            self._in_flight -= names
            if isinstance(results, MillstreamError):
                self._refused(((name, results.message) for name in names), rest_ms)
                return
            refused = (result for result in results if result.error not in (ErrorCode.NONE, _THERE))
            self._refused(((one.name or "", one.message or ErrorCode(one.error).name) for one in refused), rest_ms)

        specs = (
            CreateTopic(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                configs=tuple((config.name, config.value) for config in topic.configs),
            )
            for topic in topics
        )
        self._controller.create_topics(specs, done, timeout_ms=CREATE_MS, client=client)

    def _refused(self, topics: Iterable[tuple[str, str]], rest_ms: int) -> None:
        until_us = self._reactor.now_us() + rest_ms * 1000
        for name, why in topics:
            self._failures.pop(name, None)
            self._failures[name] = until_us, why
        while len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]


_THERE: Final = ErrorCode.TOPIC_ALREADY_EXISTS
