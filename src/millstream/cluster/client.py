"""Access to the controller from any shard.

A request goes to the controller's shard. It returns when it was carried out on every shard, and one that creates
partitions when these have leaders (`first_leaders`), or with an error:

- ``OutcomeUnknown`` if ``timeout_ms`` passed first: it may have taken effect, or still will.
- ``Retriable`` if nothing was done: overload, or the time was over before the request was received.
- ``ShuttingDown``.

``ensure_topic`` creates a topic on first use. Concurrent requests for one name wait for the same creation, names
requested in one turn travel as one request, and a race with another creation succeeds for both.
"""

from collections.abc import Callable, Iterable
from typing import Final

from millstream.cluster.first_leaders import FirstLeaders
from millstream.cluster.messages import CONTROLLER_SHARD, QUORUM, SUBMIT, Quorum, decode_quorum
from millstream.cluster.metadata import MetadataCache
from millstream.cluster.topic_table import TopicMeta
from millstream.core.controller.requests import (
    AddPartitions,
    AllocateProducerIds,
    AlterConfigs,
    AnyRequest,
    AnyResource,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    Result,
    Results,
    TopicReference,
    decode_results,
    encode_request,
)
from millstream.core.controller.rules import PARTITIONS_MAX
from millstream.core.controller.topic_names import GROUP_METADATA, SHARE_GROUP_STATE, TRANSACTION_STATE
from millstream.core.quota.mutations import MutationClient
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.shard.context import Shard

_TIMED_OUT: Final = "The controller did not finish in time; it may still carry the request out."

Done = Callable[[Results | MillstreamError], None]
TopicDone = Callable[[TopicMeta | MillstreamError], None]

INTERNAL_TIMEOUT_MS: Final = 30_000
"""Timeout of requests without a client's timeout: the request timeout of Kafka's clients."""

_SOUGHT: Final = frozenset({GROUP_METADATA, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""Topics of whose partitions a client needs one: FindCoordinator waits for that one (``coordinator.finding``)."""

_MIN_ISR: Final = "min.insync.replicas"

_SHARE_STATE_CONFIGS: Final = (
    ("cleanup.policy", "delete"),
    ("compression.type", "producer"),
    ("retention.ms", "-1"),
    ("retention.bytes", "-1"),
    ("segment.bytes", str(100 << 20)),
)
"""Kafka's, but for ``retention.bytes``, which must not be a broker's default: the coordinator prunes its log itself."""

CREATIONS_MAX: Final = 10_000
"""Maximum number of names that wait for their creation on one shard."""


class ControllerClient:
    """Sends requests of one shard to the controller.

    Shard: one each.
    """

    def __init__(self, shard: Shard, cache: MetadataCache) -> None:
        self._mailbox = shard.mailbox
        self._reactor = shard.reactor
        self._cache = cache
        self._first_leaders = FirstLeaders(shard.reactor, cache)
        self._waiting: dict[str, list[TopicDone]] = {}
        self._wanted: list[str] = []

    def submit(self, request: AnyRequest, done: Done, timeout_ms: int = INTERNAL_TIMEOUT_MS) -> None:
        """Send ``request`` to the controller. ``done`` gets one result for each of its parts, in a later turn."""

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, OutcomeUnknown):
                done(OutcomeUnknown(_TIMED_OUT))
            else:
                done(answer if isinstance(answer, MillstreamError) else decode_results(answer))

        self._mailbox.call(CONTROLLER_SHARD, SUBMIT, encode_request(request), answered, max(timeout_ms, 0) * 1000)

    def create_topics(
        self,
        topics: Iterable[CreateTopic],
        done: Done,
        *,
        timeout_ms: int,
        validate_only: bool = False,
        client: MutationClient | None = None,
    ) -> None:
        """Create topics; ``client`` is whose quota of changes it counts against."""
        if not validate_only:
            done = self._when_led(done, timeout_ms)
        self.submit(CreateTopics(tuple(topics), validate_only, client), done, timeout_ms)

    def delete_topics(
        self, topics: Iterable[TopicReference], done: Done, *, timeout_ms: int, client: MutationClient | None = None
    ) -> None:
        self.submit(DeleteTopics(tuple(topics), client), done, timeout_ms)

    def create_partitions(
        self,
        topics: Iterable[AddPartitions],
        done: Done,
        *,
        timeout_ms: int,
        validate_only: bool = False,
        client: MutationClient | None = None,
    ) -> None:
        if not validate_only:
            done = self._when_led(done, timeout_ms)
        self.submit(CreatePartitions(tuple(topics), validate_only, client), done, timeout_ms)

    def _when_led(self, done: Done, timeout_ms: int) -> Done:
        """``done``, called when the new partitions of the topics that it gets have leaders."""

        def created(results: Results | MillstreamError) -> None:
            if isinstance(results, MillstreamError):
                done(results)
                return
            names = [result.name for result in results if not result.error and result.name not in (None, *_SOUGHT)]
            self._first_leaders.when_led(filter(None, names), timeout_ms * 1000, lambda: done(results))

        return created

    def alter_configs(self, resources: Iterable[AnyResource], done: Done, *, validate_only: bool = False) -> None:
        self.submit(AlterConfigs(tuple(resources), validate_only), done)

    def allocate_producer_ids(
        self, count: int, done: Callable[[int | MillstreamError], None], timeout_ms: int = INTERNAL_TIMEOUT_MS
    ) -> None:
        """Reserve ``count`` producer ids. ``done`` gets the first one."""

        def answered(results: Results | MillstreamError) -> None:
            if isinstance(results, MillstreamError):
                done(results)
            elif results[0].error:
                done(Rejected(results[0].message or "", results[0].error))
            else:
                done(results[0].first_producer_id)

        self.submit(AllocateProducerIds(count), answered, timeout_ms)

    def describe_quorum(self, done: Callable[[Quorum | MillstreamError], None]) -> None:
        """State of the controller's log."""

        def answered(answer: bytes | MillstreamError) -> None:
            done(answer if isinstance(answer, MillstreamError) else decode_quorum(answer))

        self._mailbox.call(CONTROLLER_SHARD, QUORUM, b"", answered, INTERNAL_TIMEOUT_MS * 1000)

    # Creation on first use

    def ensure_topic(self, name: str, done: TopicDone) -> None:
        """Pass the topic ``name`` to ``done``. It is created with the node's defaults if it does not exist.

        An internal topic gets the partitions and properties that it needs.
        """
        topic = self._cache.topic(name)
        if topic is not None:
            done(topic)
            return
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.append(done)
            return
        if len(self._waiting) >= CREATIONS_MAX:
            done(Retriable(f"{CREATIONS_MAX} topics are being created", ErrorCode.LEADER_NOT_AVAILABLE))
            return
        self._waiting[name] = [done]
        if not self._wanted:
            self._reactor.end_of_turn(self._create_wanted)
        self._wanted.append(name)

    def _create_wanted(self) -> None:
        """Request the creation of this turn's topics, in requests within the size limit."""
        wanted, self._wanted = self._wanted, []
        settings = self._cache.settings
        most = max(
            settings.num_partitions,
            settings.offsets_topic_num_partitions,
            settings.transaction_state_log_num_partitions,
        )
        at_once = max(PARTITIONS_MAX // most, 1)
        for start in range(0, len(wanted), at_once):
            names = wanted[start : start + at_once]

            def created(results: Results | MillstreamError, names: list[str] = names) -> None:
                if isinstance(results, MillstreamError):
                    for name in names:
                        self._settle(name, results)
                else:
                    for result in results:
                        self._created(result)

            request = CreateTopics(tuple(self._spec(name) for name in names))
            self.submit(request, self._when_led(created, INTERNAL_TIMEOUT_MS))

    def _spec(self, name: str) -> CreateTopic:
        settings = self._cache.settings
        if name == GROUP_METADATA:
            partitions, segment_bytes = settings.offsets_topic_num_partitions, settings.offsets_topic_segment_bytes
            codec = "producer"
        elif name == TRANSACTION_STATE:
            partitions = settings.transaction_state_log_num_partitions
            segment_bytes = settings.transaction_state_log_segment_bytes
            codec = "uncompressed"
        elif name == SHARE_GROUP_STATE:
            partitions = settings.share_coordinator_state_topic_num_partitions
            isr = settings.share_coordinator_state_topic_min_isr
            return CreateTopic(name, partitions, configs=(*_SHARE_STATE_CONFIGS, (_MIN_ISR, str(isr))))
        else:
            return CreateTopic(name)
        # Kafka's properties for these topics: compacted, in segments that load fast.
        configs = (("cleanup.policy", "compact"), ("compression.type", codec), ("segment.bytes", str(segment_bytes)))
        if name == TRANSACTION_STATE:
            configs = (*configs, (_MIN_ISR, str(settings.transaction_state_log_min_isr)))
        return CreateTopic(name, partitions, configs=configs)

    def _created(self, result: Result) -> None:
        name = result.name
        assert name is not None
        topic = self._cache.topic(name)
        if topic is not None:
            self._settle(name, topic)
        elif result.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._settle(
                name,
                Retriable(f"topic {name} was deleted right after its creation", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            )
        else:
            self._settle(name, Rejected(result.message or "", result.error))

    def _settle(self, name: str, outcome: TopicMeta | MillstreamError) -> None:
        for done in self._waiting.pop(name):
            done(outcome)
