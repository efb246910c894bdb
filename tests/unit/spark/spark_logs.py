"""Logs as tests want them: batches built by the wire layer, which is the oracle for what comes out."""

from collections.abc import Iterable

from millstream.spark.decode import Aborted, Decoder
from millstream.spark.wanted import COLUMN_NAMES, Column, Wanted
from millstream.wire.records import ABORT, COMMIT, build_batch, control_record, iter_batches, iter_records, parse_header

EVERYTHING = tuple(Column(name) for name in COLUMN_NAMES)


def plain(count, *, start=0, value_bytes=20, compression=0, timestamp=1_000, **fields):
    """One batch of ``count`` records from offset ``start`` on, each different."""
    records = [
        (f"k{i}".encode(), f"v{i}-".encode().ljust(value_bytes, b"x"), (), timestamp + i)
        for i in range(start, start + count)
    ]
    return build_batch(records, base_offset=start, compression=compression, **fields)


def marker(kind, *, offset, producer_id, timestamp=1_000):
    assert kind in (ABORT, COMMIT)
    return build_batch(
        [control_record(kind, 0, timestamp)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


def expected(log, topic="t", partition=0, low=0, high=1 << 62):
    """What a reader should see, one dict a row, by the slow reader of the wire layer."""
    rows = []
    for batch in iter_batches(memoryview(log)):
        header = parse_header(batch)
        if header.is_control:
            continue
        rows += [row_of(r, header, topic, partition) for r in iter_records(batch) if low <= r.offset < high]
    return rows


def row_of(record, header, topic, partition):
    return {
        "key": record.key,
        "value": record.value,
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "timestampType": int(header.is_log_append_time),
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }


def rows_of(batches):
    """Rows of Arrow batches in the same shape; timestamps in microseconds."""
    rows = []
    for batch in batches:
        batch.validate(full=True)
        if "timestamp" in batch.schema.names:
            index = batch.schema.get_field_index("timestamp")
            batch = batch.set_column(index, "timestamp", batch.column(index).cast("int64"))
        rows += batch.to_pylist()
    return rows


def read(log, *, start=0, end=1 << 62, aborted: Iterable[Aborted] | None = (), wanted=None, pieces=1, topic="t"):
    """All Arrow batches that a decoder makes of a log that comes in ``pieces``."""
    decoder = Decoder(wanted or Wanted(EVERYTHING), topic, 0, start, end)
    out = []
    step = max(1, len(log) // pieces)
    at = 0
    upto = step if pieces > 1 else len(log)
    while at < len(log):
        scan = decoder.scan(memoryview(log)[at:upto], "test")
        out += list(decoder.decode(scan, "test", aborted))
        at += scan.consumed
        upto = min(len(log), max(upto + step, at + scan.needed))
        if upto == len(log) and scan.consumed == 0 and at + scan.needed > len(log):
            break
    out += list(decoder.finish())
    assert decoder.rows == sum(batch.num_rows for batch in out)
    return out
