"""API key 15300, RestoreBatches: batches from a backup go to the end of a partition, with the offsets that they had.

Millstream's own API; no Kafka client sends it. ``millstream backup restore`` sends it to the partition's leader
(``partition.append.restored`` has the rules). The base offset of the first batch must be the end of the log, and the
others must follow without a gap. A request that was carried out and comes again is refused; ``next_offset`` says then
where the log ends.
"""

from millstream.wire.schema import ZERO_UUID, Int16, Int32, Int64, Records, Request, Response, Uuid


class RestoreBatchesRequest(Request, api_key=15300, versions=(0, 0), flexible=0):
    """Whole batches for one partition. Offsets, producer ids and timestamps are those in the batches."""

    topic_id: Uuid = ZERO_UUID
    partition_index: Int32 = 0
    records: Records = b""


class RestoreBatchesResponse(Response, api_key=15300, versions=(0, 0), flexible=0):
    """``next_offset`` is the end of the log, with an error as far as it is known, else -1."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    next_offset: Int64 = -1
