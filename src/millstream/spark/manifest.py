"""The manifest: the list of sealed segments that a broker serves over HTTP, and those in its object store.

``GET /v1/topics/<name>/segments`` lists, per partition, files that are complete and below the high watermark. Its
address is the option ``manifest.url``, or the brokers' own configuration (``millstream.http.endpoint``). A broker
without that configuration, such as an Apache Kafka, has no manifest and is read through its Kafka port. So is
everything if the manifest cannot be read; with ``read.path=segments`` that is an error instead.

Of a tiered topic the answer also says how far each partition is archived and in which store. If files that a query
needs were deleted, or are not on this machine, `archive` lists the archived segments. One that has a file as well keeps
both: the task takes what it can open.

A manifest is trusted only for the topic id that was requested, and a file only if it exists on the disk of the broker
that named it (`data_directory`). The reader checks its content.
"""

import base64
import http.client
import json
import logging
import os
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from millstream.client import Cluster
from millstream.client.cluster import BROKER_RESOURCE
from millstream.client.security import Security, context_of, http_login
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.endpoint_setting import HTTP_ENDPOINT
from millstream.spark.archive import Archived, Archives
from millstream.spark.data_directory import DataDirectory, is_own
from millstream.spark.planner import Segment, Span

_LOG: Final = logging.getLogger("millstream.spark")
_TIMEOUT_S: Final = 10.0

SegmentMap = dict[tuple[str, int], tuple[Segment, ...]]
"""Segments of a partition in order, by (topic id in hex, partition)."""


class Listed(msgspec.Struct, frozen=True):
    """What a broker says of one partition."""

    files: tuple[Segment, ...]
    archived: Archived | None = None


class Manifests:
    """Fetches manifests for one query. It caches addresses and connections."""

    def __init__(
        self,
        cluster: Cluster,
        url: str | None,
        *,
        required: bool,
        objects_url: str | None = None,
        events: bool = False,
    ) -> None:
        self._cluster = cluster
        self._url = url
        self._objects_url = objects_url
        self._files = "chunks" if events else "segments"
        self._archives = Archives(cluster.timeout_s, required=required)
        self._required = required
        self._endpoints: dict[int, str | None] = {}
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._warned: set[str] = set()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._archives.close()

    def segments(self, topic: str, topic_id: str, leaders: Iterable[int], spans: Sequence[Span]) -> SegmentMap:
        """Sealed segments of a topic's partitions, from the brokers that lead them; archived ones only of ``spans``.

        Raises:
            Unavailable: there is no manifest and ``read.path`` is ``segments``.
        """
        found: SegmentMap = {}
        for node_id in sorted(set(leaders)):
            try:
                endpoint = self._url or self._endpoint(node_id)
                if endpoint is None:
                    raise Unavailable(f"broker {node_id} does not say where its manifest is ({HTTP_ENDPOINT})")
                listed = _read(self._get(endpoint, topic), topic_id, self._files)
            except (MillstreamError, OSError, http.client.HTTPException, ValueError) as error:
                self._without(topic, error)
                continue
            for key, partition in listed.items():
                wanted = [span for span in spans if (span.topic_id, span.partition) == key]
                found[key] = self._with_archived(partition, wanted)
        return found

    def _with_archived(self, listed: Listed, spans: Sequence[Span]) -> tuple[Segment, ...]:
        """The files of a partition and, if these are not enough, its archived segments."""
        files, archived = listed.files, listed.archived
        if archived is None:
            return files
        if self._objects_url is not None:
            archived = msgspec.structs.replace(archived, url=self._objects_url)
        found: dict[int, Segment] = {}
        for span in spans:
            if span.start < archived.end_offset and not _at_hand(files, span):
                found |= {one.base_offset: one for one in self._archives.segments(archived, span)}
        return _merged(files, list(found.values()))

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
        headers = {"Accept": "application/json", **http_login(self._cluster.security, endpoint)}
        for attempt in (1, 2):
            connection = self._connections.get(endpoint)
            if connection is None:
                connection = self._connections[endpoint] = _connect(endpoint, self._cluster.security)
            try:
                connection.request("GET", path, headers=headers)
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


def _connect(endpoint: str, security: Security) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Rejected(f"manifest address {endpoint!r} is not http://host:port or https://host:port")
    if parts.scheme == "https":
        context = context_of(security)
        return http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=_TIMEOUT_S, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=_TIMEOUT_S)


def _at_hand(files: Sequence[Segment], span: Span) -> bool:
    """Whether files of this machine start at or before a span."""
    first = next((file for file in files if file.end_offset > span.start), None)
    if first is None or first.base_offset > span.start:
        return False
    return os.path.exists(first.path) and is_own(first.directory)


def _merged(files: Sequence[Segment], archived: Sequence[Segment]) -> tuple[Segment, ...]:
    """Files, those that are archived as well with both places, and what is only archived, in order."""
    by_range = {(one.base_offset, one.end_offset): one for one in archived}
    first = files[0].base_offset if files else None
    both = [
        file
        if (twin := by_range.get((file.base_offset, file.end_offset))) is None
        else msgspec.structs.replace(file, archived=twin.archived, store=twin.store)
        for file in files
    ]
    alone = [one for one in archived if first is None or one.base_offset < first]
    return tuple(sorted((*alone, *both), key=lambda one: one.base_offset))


def _read(manifest: Mapping[str, Any], topic_id: str, files: str) -> dict[tuple[str, int], Listed]:
    if _hex(str(manifest.get("topic_id", ""))) != topic_id:
        raise Unavailable("the manifest is of another topic of that name")
    try:
        url, incarnation = manifest.get("objects_url"), manifest.get("incarnation")
        directory = DataDirectory(str(manifest["data_dir"]), str(incarnation)) if incarnation is not None else None
        return {
            (topic_id, int(partition["partition"])): Listed(
                _segments(partition[files], directory),
                Archived(
                    str(url),
                    int(partition["archived_end_offset"]),
                    base64.b64decode(partition.get("shared_manifest", "")),
                )
                if url and "archived_end_offset" in partition
                else None,
            )
            for partition in manifest["partitions"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the manifest is not of the form expected: {error!r}") from error


def _segments(entries: Iterable[Mapping[str, Any]], directory: DataDirectory | None) -> tuple[Segment, ...]:
    files = [
        Segment(
            int(entry["base_offset"]),
            int(entry["end_offset"]),
            int(entry["bytes"]),
            str(entry["path"]),
            int(entry.get("min_timestamp", -1)),
            int(entry.get("max_timestamp", -1)),
            aborted=_aborted(entry.get("aborted")),
            directory=directory,
        )
        for entry in entries
    ]
    return tuple(sorted((f for f in files if f.end_offset > f.base_offset), key=lambda f: f.base_offset))


def _aborted(spans: Iterable[Iterable[int]] | None) -> tuple[tuple[int, int, int], ...] | None:
    if spans is None:
        return None
    return tuple((int(producer_id), int(first), int(marker)) for producer_id, first, marker in spans)


def _hex(topic_id: str) -> str:
    """A topic id as 32 hex digits, from hex, a UUID with dashes, or Kafka's base64."""
    plain = topic_id.replace("-", "")
    if len(plain) == 32:
        return plain.lower()
    return base64.urlsafe_b64decode(topic_id + "==").hex() if len(topic_id) == 22 else ""
