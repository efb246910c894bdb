"""API key 15200, ReplaceSegments: other objects have the batches of archived segments from now on.

Millstream's own API; no Kafka client sends it. A job that works on the object store sends it to the partition's leader
(``millstream.tiers.replacing`` has the rules). A request may be repeated: one that was carried out is answered as it
was the first time, by its ``replacement_id``.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Int64, Message, Request, Response, Uuid


class SegmentOfReplacement(Message):
    """An archived segment, as a manifest has it."""

    base_offset: Int64 = 0
    end_offset: Int64 = 0
    size_bytes: Int64 = 0
    checksum: Int64 = 0
    min_timestamp: Int64 = -1
    max_timestamp: Int64 = -1
    term: Int64 = 0
    index_bytes: Int64 = 0
    revision: Int64 = 0


class ReplaceSegmentsRequest(Request, api_key=15200, versions=(0, 0), flexible=0):
    """The segments ``before``, and those ``after``, which have exactly their offsets."""

    topic_id: Uuid = ZERO_UUID
    partition_index: Int32 = 0
    replacement_id: Uuid = ZERO_UUID
    expected_version: Int64 = 0
    before: list[SegmentOfReplacement] = []
    after: list[SegmentOfReplacement] = []


class ReplaceSegmentsResponse(Response, api_key=15200, versions=(0, 0), flexible=0):
    """``version`` is that of the manifest after the replacement; -1 with an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    version: Int64 = -1
