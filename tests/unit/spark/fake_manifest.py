"""Segment files on disk and the manifest that names them, for tests of the direct path; works beside ``FakeKafka``."""

import http.server
import json
import threading
from array import array

from millstream.format.index import INDEX_INTERVAL_BYTES, SegmentSummary, encode_block
from millstream.wire.records import iter_batches, parse_header


def index_of(log, base):
    """The sparse index that the broker would keep of a segment."""
    offsets, positions, timestamps = array("q"), array("q"), array("q")
    at, marked = 0, 0
    for batch in iter_batches(memoryview(log)):
        if at - marked >= INDEX_INTERVAL_BYTES:
            offsets.append(parse_header(batch).base_offset)
            positions.append(at)
            timestamps.append(0)
            marked = at
        at += len(batch)
    summary = SegmentSummary(base, 0, len(log), sealed=True)
    return encode_block(summary, offsets, positions, timestamps)


class Manifest:
    """Serves the manifest of files that ``seal`` wrote; ``requests`` counts, ``broken`` breaks it. ``archived`` has the
    archive's end of partitions, in the store at
    ``objects_url``, and ``shared`` the manifests of shared ones. ``incarnation`` makes it a broker of a cluster.
    """

    def __init__(self, directory):
        self.directory = directory
        self.files = {}
        self.topic_ids = {}
        self.requests = 0
        self.broken = False
        self.objects_url = None
        self.archived = {}
        self.shared = {}
        self.incarnation = None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.requests += 1
                status, body = outer.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def seal(self, topic, topic_id, partition, log, end_offset=None):
        """Write one segment file of whole batches; returns its path."""
        headers = [parse_header(batch) for batch in iter_batches(memoryview(log))]
        base = headers[0].base_offset
        place = self.directory / topic_id.hex() / str(partition)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{base:020d}.log"
        path.write_bytes(log)
        path.with_suffix(".index").write_bytes(index_of(log, base))
        self.topic_ids[topic] = topic_id
        entry = {
            "base_offset": base,
            "end_offset": end_offset or headers[-1].next_offset,
            "bytes": len(log),
            "min_timestamp": min(header.base_timestamp for header in headers),
            "max_timestamp": max(header.max_timestamp for header in headers),
            "path": str(path),
        }
        self.files.setdefault((topic, partition), []).append(entry)
        return path

    def answer(self, path):
        topic = path.removeprefix("/v1/topics/").removesuffix("/segments")
        if self.broken or topic not in self.topic_ids:
            return 404, b"{}"
        partitions = [
            {"partition": partition, "segments": entries}
            | ({"archived_end_offset": self.archived[partition]} if partition in self.archived else {})
            | ({"shared_manifest": self.shared[partition]} if partition in self.shared else {})
            for (name, partition), entries in sorted(self.files.items())
            if name == topic
        ]
        answer = {"topic": topic, "topic_id": self.topic_ids[topic].hex(), "partitions": partitions}
        if self.objects_url is not None:
            answer["objects_url"] = self.objects_url
        if self.incarnation is not None:
            answer |= {"data_dir": str(self.directory), "incarnation": self.incarnation}
        return 200, json.dumps(answer).encode()
