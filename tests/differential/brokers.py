"""The two brokers: Millstream in a temporary directory, Apache Kafka 4.3.1 from its jars.

Both get the settings of ``SETTINGS``, Kafka's names with Kafka's meaning: nothing is cleaned up while cases run, groups
rebalance at once, and short sessions are allowed. Before the first case the coordinators of both have loaded.
"""

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path

from differential.talk import Peer, Talk
from millstream.model.error_code import ErrorCode
from millstream.wire.apis import APIS
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from millstream.wire.messages.read_share_group_state import ReadStatePartition, ReadStateTopic
from millstream.wire.messages.read_share_group_state_summary import ReadShareGroupStateSummaryRequest

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "node.id": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "log.retention.check.interval.ms": "86400000",
    "offsets.topic.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.streams.initial.rebalance.delay.ms": "0",
    "broker.rack": "rack-1",
}
KAFKA_ONLY = {"log.initial.task.delay.ms": "86400000", "controlled.shutdown.enable": "false"}
TRANSACTIONS, SHARE_STATES = 1, 2
GROUPS = 64
"""Groups asked for at the start: enough names to meet every partition of the offsets topic."""


@contextlib.contextmanager
def millstream(shards: int = 2) -> Generator[Peer]:
    """Our broker, ready."""
    from millstream.testing.process import Broker

    with Broker(shards=shards, memory="192MiB", settings=SETTINGS) as broker:
        try:
            yield ready(peer("millstream", broker.bootstrap))
        except BaseException:
            print(broker.log_tail(), file=sys.stderr)
            raise


@contextlib.contextmanager
def kafka() -> Generator[Peer]:
    """A real Kafka, ready; ``PeerUnavailable`` says what is missing on this machine."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from bench.peers.kafka import kafka as start

    with start(properties=SETTINGS | KAFKA_ONLY) as broker:
        try:
            yield ready(peer("kafka", broker.bootstrap))
        except BaseException:
            print(broker.log_text()[-3000:], file=sys.stderr)
            raise


def unavailable() -> type[Exception]:
    """What is raised where Java or Maven is missing."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from bench.peers.kafka import PeerUnavailable

    return PeerUnavailable


def peer(name: str, bootstrap: str) -> Peer:
    host, port = bootstrap.rsplit(":", 1)
    return Peer(name, host, int(port))


def ready(one: Peer) -> Peer:
    """Waits for coordinators and producer ids."""
    t = Talk(one, 0, ApiVersionsRequest.API_KEY)
    try:
        names = [f"warm-{number}" for number in range(GROUPS)]
        t.until(
            FindCoordinatorRequest(coordinator_keys=names[:1]), lambda answer: not answer.coordinators[0].error_code
        )
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=[]) for name in names])
        t.until(asked, lambda answer: not any(group.error_code for group in answer.groups), 9)
        asked = FindCoordinatorRequest(key_type=TRANSACTIONS, coordinator_keys=names[:1])
        t.until(asked, lambda answer: answer.coordinators[0].error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE)
        t.until(InitProducerIdRequest(None), lambda answer: not answer.error_code)
        key = f"{names[0]}:AAAAAAAAAAAAAAAAAAAAAA:0"
        asked = FindCoordinatorRequest(key_type=SHARE_STATES, coordinator_keys=[key])
        t.until(asked, lambda answer: not answer.coordinators[0].error_code)
        parts = [ReadStatePartition(number) for number in range(GROUPS)]
        asked = ReadShareGroupStateSummaryRequest("warm", [ReadStateTopic(b"\7" * 16, parts)])
        loaded = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        t.until(asked, lambda answer: all(part.error_code in loaded for part in answer.results[0].partitions))
    finally:
        t.close()
    return one


def advertised(one: Peer) -> dict[int, tuple[int, int]]:
    """API key → versions that a broker says it serves."""
    t = Talk(one, 0, ApiVersionsRequest.API_KEY)
    try:
        answer = t.quiet(ApiVersionsRequest("differential", "1"), APIS[18].versions[1])
    finally:
        t.close()
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
