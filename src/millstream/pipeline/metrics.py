"""Figures of a running pipeline for Prometheus, over HTTP, from the driver itself.

``METRICS`` declares each figure once. A scrape reads the sinks' counters as they are; it asks Spark for the newest
offsets that its source has reported, and no broker and no table. A scrape that fails disturbs no batch. The port is
open while the run is; a port that is taken ends the run before it starts.
"""

import json
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal

import msgspec

from millstream.errors import Unavailable
from millstream.pipeline.sink_query import SinkQuery

_LOG: Final = logging.getLogger("millstream.pipeline")
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metric(msgspec.Struct, frozen=True):
    """One figure of a sink: ``read`` gives its value, or None before the first."""

    name: str
    kind: Literal["counter", "gauge"]
    doc: str
    read: Callable[[SinkQuery], float | None]


METRICS: Final[tuple[Metric, ...]] = (
    Metric("rows_total", "counter", "Rows written since the sink's first batch.", lambda s: s.figures.total_rows),
    Metric(
        "rejected_total", "counter", "Records that became dead letters, since the sink's first batch.",
        lambda s: s.figures.total_rejected,
    ),
    Metric("bytes_total", "counter", "Bytes written since the sink's first batch.", lambda s: s.figures.total_bytes),
    Metric("batches_total", "counter", "Batches committed by this run.", lambda s: s.figures.batches),
    Metric("restarts", "gauge", "Restarts of the sink's query since its last batch.", lambda s: s.figures.restarts),
    Metric("offsets_left", "gauge", "Offsets between the last batch and the end of the source.", lambda s: s.left()),
    Metric("last_batch_rows", "gauge", "Rows of the last batch.", lambda s: d.rows if (d := s.figures.done) else None),
    Metric(
        "last_batch_seconds", "gauge", "Duration of the last batch.",
        lambda s: d.seconds if (d := s.figures.done) else None,
    ),
    Metric(
        "last_batch_timestamp_seconds", "gauge", "Time of the last commit, in seconds since 1970.",
        lambda s: s.figures.done_at,
    ),
)  # fmt: skip
"""Names follow the prefix ``millstream_pipeline_``; labels are ``pipeline`` and ``sink``."""

PREFIX: Final = "millstream_pipeline_"


def exposition(pipeline: str, sinks: Sequence[SinkQuery]) -> str:
    """The figures of all sinks in Prometheus' text format."""
    lines: list[str] = []
    for metric in METRICS:
        name = PREFIX + metric.name
        lines += [f"# HELP {name} {metric.doc}", f"# TYPE {name} {metric.kind}"]
        for sink in sinks:
            value = metric.read(sink)
            if value is not None:
                labels = f"pipeline={json.dumps(pipeline)},sink={json.dumps(sink.name)}"
                lines.append(f"{name}{{{labels}}} {value:.15g}")
    return "\n".join(lines) + "\n"


@contextmanager
def served(address: str, pipeline: str, sinks: Sequence[SinkQuery]) -> Generator[str]:
    """Serve ``/metrics`` while the block runs; yields the URL.

    Args:
        address: ``host:port``; port 0 takes a free one.
        pipeline: its name.
        sinks: those of the run; the sequence may grow.

    Raises:
        Unavailable: cannot listen there.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "the metrics are at /metrics")
                return
            body = exposition(pipeline, sinks).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (of the base class)
            _LOG.debug(format, *args)

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise Unavailable(f"metrics: cannot listen at {address}: {error.strerror or error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
