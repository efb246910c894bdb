"""The edge to confluent-kafka: the only place that makes clients of it.

Clients are silent (librdkafka's own log lines go nowhere; what matters arrives as an error), and are made only after a
broker has taken a connection of the project's own client, because librdkafka would retry for its whole timeout where
"connection refused" or a wrong password is known at once. Errors leave here as ``CommandFailed``.
"""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.cli import identity
from millstream.cli.explained import explain, no_answer, unreachable
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.output import print_json, remark
from millstream.cli.what_answers import with_port
from millstream.config.forms import Endpoint, parse_endpoint

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from concurrent.futures import Future

    from millstream.cli.confluent import AdminClient, ClusterMetadata, Consumer, Producer, TopicPartition

_SILENT = logging.getLogger("millstream.cli.librdkafka")
_SILENT.setLevel(logging.CRITICAL + 1)
_CONNECT_TIMEOUT_S = 5.0
_NO_LEADER = "LEADER_NOT_AVAILABLE"
_NO_OFFSET = -1
"""Smaller offsets are librdkafka's symbolic values (beginning, end, stored)."""
_NOT_SERVED = "KAFKA_STORAGE_ERROR"


def admin_client(bootstrap: str) -> AdminClient:
    """A client for topics, groups and configurations."""
    from millstream.cli.confluent import AdminClient

    return AdminClient(_configuration(bootstrap, {}), logger=_SILENT)


def producer_client(bootstrap: str, configuration: Mapping[str, Any]) -> Producer:
    """A producer."""
    from millstream.cli.confluent import Producer

    return Producer(_configuration(bootstrap, configuration), logger=_SILENT)


def consumer_client(bootstrap: str, configuration: Mapping[str, Any]) -> Consumer:
    """A consumer."""
    from millstream.cli.confluent import Consumer

    return Consumer(_configuration(bootstrap, configuration), logger=_SILENT)


def answer(future: Future[Any], what: str, bootstrap: str, timeout_s: float) -> Any:
    """The result of an administrative future; its error becomes a sentence."""
    with explained(what, bootstrap):
        try:
            return future.result(timeout_s)
        except TimeoutError:
            raise no_answer(bootstrap, timeout_s) from None


@contextmanager
def explained(what: str, bootstrap: str) -> Generator[None]:
    """Turn Kafka's exceptions in the block into sentences about ``what``, and those of arguments that it refuses."""
    from millstream.cli.confluent import KafkaException

    try:
        yield
    except KafkaException as failure:
        raise explain(failure.args[0], what, bootstrap) from None
    except ValueError as refusal:
        raise WrongUsage(f"{what}: {refusal}") from None


def done(future: Future[Any], what: str, tolerated: str, bootstrap: str, timeout_s: float) -> bool:
    """Whether the operation behind the future succeeded; False for the one error code that the caller tolerates."""
    try:
        answer(future, what, bootstrap, timeout_s)
    except CommandFailed as failure:
        if failure.code and failure.code == tolerated:
            return False
        raise
    return True


class Fate(NamedTuple):
    """The result for one name. ``failure`` is None if it succeeded, or if absence is accepted."""

    name: str
    done: bool
    failure: CommandFailed | None


def fates(
    futures: Mapping[str, Future[Any]], kind: str, tolerated: str, bootstrap: str, timeout_s: float
) -> list[Fate]:
    """The result for each name, failures included."""
    found: list[Fate] = []
    for name, future in futures.items():
        try:
            found.append(Fate(name, done(future, f"{kind} '{name}'", tolerated, bootstrap, timeout_s), None))
        except CommandFailed as failure:
            found.append(Fate(name, False, failure))
    return found


def report_fates(found: Sequence[Fate], kind: str, verb: str, otherwise: str, *, as_json: bool) -> None:
    """Print the result for each name. Raises the first failure at the end."""
    failed = [fate for fate in found if fate.failure is not None]
    if as_json:
        print_json(
            [
                {kind: fate.name, verb: fate.done} | ({"error": str(fate.failure)} if fate.failure else {})
                for fate in found
            ]
        )
    else:
        for fate in found:
            if fate.failure is None:
                remark(f"{verb if fate.done else otherwise} {kind} '{fate.name}'")
    if failed:
        for fate in failed[:-1]:
            if not as_json:  # the JSON document has the failures
                remark(f"error: {fate.failure}")
        assert failed[-1].failure is not None
        raise failed[-1].failure


def broker_configs(client: AdminClient, bootstrap: str, timeout_s: float) -> Mapping[str, Any]:
    """The settings of the broker that answers at `bootstrap`, by name."""
    from millstream.cli.confluent import ConfigResource, ResourceType

    with explained("broker", bootstrap):
        node_id = _answering(client.list_topics(timeout=timeout_s), bootstrap)
        resource = ConfigResource(ResourceType.BROKER, str(node_id))
        future = next(iter(client.describe_configs([resource], request_timeout=timeout_s).values()))
    return answer(future, f"broker {node_id}", bootstrap, timeout_s + 1)


def _answering(found: ClusterMetadata, bootstrap: str) -> int:
    """The broker that ``bootstrap`` names first, else the one that gave this metadata: the client may have asked any of
    those that it knows. The list may contain brokers that no longer run.
    """
    named = bootstrap.partition(",")[0].strip()
    for node, broker in found.brokers.items():
        if f"{broker.host}:{broker.port}" == named:
            return node
    if found.orig_broker_id in found.brokers:
        return found.orig_broker_id
    address = (found.orig_broker_name or "").partition("/")[0]
    same = (node for node, broker in found.brokers.items() if f"{broker.host}:{broker.port}" == address)
    return next(same, min(found.brokers))


def partition_numbers(client: AdminClient, topic: str, bootstrap: str, timeout_s: float) -> list[int]:
    """The partitions of a topic, without creating it."""
    from millstream.cli.confluent import TopicCollection

    what = f"topic '{topic}'"
    with explained(what, bootstrap):
        futures = client.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        description = answer(futures[topic], what, bootstrap, timeout_s + 1)
    return sorted(partition.id for partition in description.partitions)


def offsets_at(
    client: AdminClient,
    wanted: Mapping[TopicPartition, Any],
    what: str,
    bootstrap: str,
    timeout_s: float,
    *,
    served_only: bool = False,
) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition for OffsetSpecs; -1 without one (a timestamp after the last record).

    With ``served_only`` partitions that the broker cannot serve, because their log is damaged, are left out.
    """
    found = found_at(client, wanted, what, bootstrap, timeout_s, served_only=served_only)
    return {place: one.offset for place, one in found.items()}


class FoundOffset(NamedTuple):
    """An offset, and the leader epoch of its record or of the log's end; None for an unknown one."""

    offset: int
    leader_epoch: int | None


def found_at(
    client: AdminClient,
    wanted: Mapping[TopicPartition, Any],
    what: str,
    bootstrap: str,
    timeout_s: float,
    *,
    served_only: bool = False,
) -> dict[tuple[str, int], FoundOffset]:
    """``offsets_at`` with leader epochs."""
    if not wanted:
        return {}
    with explained(what, bootstrap):
        futures = client.list_offsets(dict(wanted), request_timeout=timeout_s)
    found: dict[tuple[str, int], FoundOffset] = {}
    for partition, future in futures.items():
        where = f"partition {partition.partition} of {what}"
        try:
            result = answer(future, where, bootstrap, timeout_s + 1)
            epoch = result.leader_epoch
            if result.offset < _NO_OFFSET:
                raise CommandFailed(
                    f"{where}: its leader does not answer; 'millstream cluster health' says which broker to start",
                    _NO_LEADER,
                )
            found[partition.topic, partition.partition] = FoundOffset(
                int(result.offset), None if epoch is None or epoch < 0 else int(epoch)
            )
        except CommandFailed as error:
            if not served_only or error.code not in (_NOT_SERVED, _NO_LEADER):
                raise
    return found


def _configuration(bootstrap: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    from millstream.cli import greeting

    greeting.greet(_reach(bootstrap), identity.security() if identity.properties() else None)
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "millstream-cli",
        "log_level": 0,
        "log.connection.close": False,
        "allow.auto.create.topics": False,
        **identity.librdkafka(),
        **extra,
    }


def reached(bootstrap: str) -> str:
    """The addresses, each as ``HOST:PORT``, when one of them takes a connection; CommandFailed if none does."""
    _reach(bootstrap)
    return ",".join(f"{one.host}:{one.port}" for one in map(_endpoint, map(str.strip, bootstrap.split(","))))


def reachable(bootstrap: str) -> bool:
    """Whether one of the addresses takes a connection."""
    try:
        _reach(bootstrap)
    except CommandFailed:
        return False
    return True


def _reach(bootstrap: str) -> Endpoint:
    """The first of the addresses that takes a connection; CommandFailed with the last reason if none does."""
    failure = unreachable(bootstrap, "no address given")
    for text in bootstrap.split(","):
        endpoint = _endpoint(text.strip())
        try:
            socket.create_connection(endpoint, timeout=_CONNECT_TIMEOUT_S).close()
        except socket.gaierror:
            failure = CommandFailed(
                f"--bootstrap: no address is known for the host {endpoint.host!r}; check its spelling, the name server "
                "and /etc/hosts, or give the broker's IP address"
            )
        except TimeoutError:
            failure = unreachable(bootstrap, f"no connection within {_CONNECT_TIMEOUT_S:g} s")
        except OSError as error:
            failure = unreachable(bootstrap, (error.strerror or str(error)).lower())
        else:
            return endpoint
    raise failure


def _endpoint(text: str) -> Endpoint:
    """``HOST:PORT``; a host alone has Kafka's port."""
    try:
        return parse_endpoint(with_port(text))
    except ValueError:
        raise WrongUsage(
            f"--bootstrap: {text!r} is not valid, expected HOST:PORT or HOST, such as 127.0.0.1:9092"
        ) from None
