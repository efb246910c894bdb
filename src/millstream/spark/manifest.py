"""The manifest: the list of sealed segment files that a broker serves over HTTP.

``GET /v1/topics/<name>/segments`` lists, per partition, files that are complete and below the high watermark. Its
address is the option ``manifest.url``, or the brokers' own configuration (``millstream.http.endpoint``). A broker
without that configuration, such as an Apache Kafka, has no manifest and is read through its Kafka port. So is
everything if the manifest cannot be read; with ``read.path=segments`` that is an error instead.

A manifest is trusted only for the topic id that was requested, and a file only if it exists. The reader checks its
content.
"""

import base64
import http.client
import json
import logging
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millstream.client import Cluster
from millstream.client.cluster import BROKER_RESOURCE
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.endpoint_setting import HTTP_ENDPOINT
from millstream.spark.planner import Segment

_LOG: Final = logging.getLogger("millstream.spark")
_TIMEOUT_S: Final = 10.0

SegmentMap = dict[tuple[str, int], tuple[Segment, ...]]
"""Files of a partition in order, by (topic id in hex, partition)."""


class Manifests:
    """Fetches manifests for one query. It caches addresses and connections."""

    def __init__(self, cluster: Cluster, url: str | None, *, required: bool) -> None:
        self._cluster = cluster
        self._url = url
        self._required = required
        self._endpoints: dict[int, str | None] = {}
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._warned: set[str] = set()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def segments(self, topic: str, topic_id: str, leaders: Iterable[int]) -> SegmentMap:
        """Sealed files of a topic's partitions, from the brokers that lead them.

        Raises:
            Unavailable: there is no manifest and ``read.path`` is ``segments``.
        """
        found: SegmentMap = {}
        for node_id in sorted(set(leaders)):
            try:
                endpoint = self._url or self._endpoint(node_id)
                if endpoint is None:
                    raise Unavailable(f"broker {node_id} does not say where its manifest is ({HTTP_ENDPOINT})")
                found.update(_read(self._get(endpoint, topic), topic_id))
            except (MillstreamError, OSError, http.client.HTTPException, ValueError) as error:
                self._without(topic, error)
        return found

    def _without(self, topic: str, error: Exception) -> None:
        if self._required:
            raise Unavailable(f"read.path=segments, but there is no manifest of {topic}: {error}") from error
        if topic not in self._warned:
            self._warned.add(topic)
            _LOG.info("reading %s through brokers only: %s", topic, error)

    def _endpoint(self, node_id: int) -> str | None:
        if node_id not in self._endpoints:
            settings = self._cluster.describe_configs(BROKER_RESOURCE, str(node_id), [HTTP_ENDPOINT], node_id=node_id)
            self._endpoints[node_id] = settings.get(HTTP_ENDPOINT) or None
        return self._endpoints[node_id]

    def _get(self, endpoint: str, topic: str) -> Mapping[str, Any]:
        path = f"/v1/topics/{urllib.parse.quote(topic, safe='')}/segments"
        for attempt in (1, 2):
            connection = self._connections.get(endpoint)
            if connection is None:
                connection = self._connections[endpoint] = _connect(endpoint)
            try:
                connection.request("GET", path, headers={"Accept": "application/json"})
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                # The broker may have closed a kept connection; a fresh one shows the real state.
                self._connections.pop(endpoint).close()
                if attempt == 2:
                    raise
                continue
            if answer.status != http.HTTPStatus.OK:
                raise Unavailable(f"{endpoint}{path} answers {answer.status} {answer.reason}")
            decoded: object = json.loads(body)
            if not isinstance(decoded, dict):
                raise Unavailable(f"{endpoint}{path} answers something that is no manifest")
            return decoded
        raise AssertionError("two attempts either return or raise")


def _connect(endpoint: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme != "http" or not parts.hostname:
        raise Rejected(f"manifest address {endpoint!r} is not http://host:port")
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=_TIMEOUT_S)


def _read(manifest: Mapping[str, Any], topic_id: str) -> SegmentMap:
    if _hex(str(manifest.get("topic_id", ""))) != topic_id:
        raise Unavailable("the manifest is of another topic of that name")
    try:
        return {
            (topic_id, int(partition["partition"])): _segments(partition["segments"])
            for partition in manifest["partitions"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the manifest is not of the form expected: {error!r}") from error


def _segments(entries: Iterable[Mapping[str, Any]]) -> tuple[Segment, ...]:
    files = [
        Segment(
            int(entry["base_offset"]),
            int(entry["end_offset"]),
            int(entry["bytes"]),
            str(entry["path"]),
            int(entry.get("min_timestamp", -1)),
            int(entry.get("max_timestamp", -1)),
        )
        for entry in entries
    ]
    return tuple(sorted((f for f in files if f.end_offset > f.base_offset), key=lambda f: f.base_offset))


def _hex(topic_id: str) -> str:
    """A topic id as 32 hex digits, from hex, a UUID with dashes, or Kafka's base64."""
    plain = topic_id.replace("-", "")
    if len(plain) == 32:
        return plain.lower()
    return base64.urlsafe_b64decode(topic_id + "==").hex() if len(topic_id) == 22 else ""
