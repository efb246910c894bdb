"""Records of a topic by their offsets, as they are in the log: for dead letters of rows that a query has made."""

import time
from collections.abc import Mapping

from millstream.client.record_reader import RecordReader
from millstream.errors import Unavailable
from millstream.pipeline.model import Pipeline
from millstream.pipeline.start import open_logs


def raw_records(
    pipeline: Pipeline, wanted: Mapping[tuple[str, int], set[int]]
) -> dict[tuple[str, int, int], tuple[bytes | None, bytes | None]]:
    """Key and value of each record that is still there, by topic, partition and offset.

    Raises:
        Unavailable: no leader answers.
    """
    found: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = {}
    left = {target: max(offsets) for target, offsets in wanted.items()}
    logs = open_logs(pipeline)
    try:
        deadline = time.monotonic() + logs.cluster.timeout_s
        with RecordReader(logs.cluster, {target: min(wanted[target]) for target in left}) as reader:
            while left:
                count = len(found)
                for target, record in reader.read_round():
                    if record.offset in wanted[target]:
                        found[*target, record.offset] = (_bytes(record.key), _bytes(record.value))
                for target in [one for one in left if reader.positions[one] > left[one] or one in reader.at_end]:
                    del left[target], reader.positions[target]
                if len(found) > count:
                    deadline = time.monotonic() + logs.cluster.timeout_s
                elif left and time.monotonic() > deadline:
                    raise Unavailable(f"records that have no key could not be read again: {reader.failure}")
    finally:
        logs.close()
    return found


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)
