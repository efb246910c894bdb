"""Copies the audit's files into the topic ``audit.topic``, so that the records of all brokers are in one place.

::

    thread of the audit ──► audit.jsonl (``audit_file``) ──► this thread, as a client of the broker's own ──► the topic
                                                       └──► topic.position: the file (inode) and how far it is copied

Nothing waits for the topic: records are in the files first, and this thread follows them. A value is the line of the
file, the key is the broker's node id; a broker's records are in one partition, in order. A missing topic is created,
with the cluster's defaults; access control entries say who may read it. Writes of this thread are no changes, so they
are in no audit; each of its connections is one login there.

=====================================  ================================================================================
The topic or its leader is away        tried again after ``PAUSE_S``, one line a minute in the log; the files keep what
                                       waits, as long as they are kept (``audit.log.files``)
A file is removed before it is copied  ``audit_topic_gaps`` counts it, and the topic gets a record of kind ``lost``
A crash, a lost answer                 what may have been written is written again: a record can be there twice
A right is missing                     cannot be: the broker is a superuser of its own cluster
=====================================  ================================================================================
"""

import contextlib
import os
import threading
import time
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from millstream.app.audit_file import DIRECTORY, FILE
from millstream.app.own_way import NO_WAY, OwnWay
from millstream.app.registry_rights import SCHEMAS
from millstream.client.cluster import Cluster, error_of
from millstream.config.settings import Settings
from millstream.core.controller.topic_names import INTERNAL_TOPICS
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.kafka.audit import time_text
from millstream.model.error_code import ErrorCode
from millstream.model.pipelines import PIPELINES
from millstream.telemetry.log import RateLimit, log
from millstream.telemetry.metrics import StatsSlab
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.records import build_batch

POSITION: Final = "topic.position"
LOOK_S: Final = 1.0
PAUSE_S: Final = 5.0
_READ_BYTES: Final = 256 << 10
"""Several times the longest record."""
_HEAD_BYTES: Final = 100
_TIMEOUT_S: Final = 15.0
_TAKEN: Final = (*INTERNAL_TOPICS, SCHEMAS, PIPELINES)
_EXISTS: Final = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def check_audit_topic(settings: Settings) -> None:
    """Raises Rejected if the broker uses the topic for something else."""
    if settings.audit_topic in _TAKEN:
        raise Rejected(f"audit.topic={settings.audit_topic} is a topic of the broker's own: choose another name")


class Position(NamedTuple):
    """How far the files are copied: in the file that has this inode and starts with ``head``, as a removed file's inode
    may come again. The inode is 0 before the first file.
    """

    inode: int
    offset: int
    head: str = ""


class Lines(NamedTuple):
    """Whole lines of a file, and the position after them. ``lost``: files before them were removed."""

    lines: list[bytes]
    after: Position
    lost: bool


def next_lines(directory: str, at: Position, files: int) -> Lines | None:
    """The lines after a position; None while nothing follows it. A file that is renamed keeps its inode."""
    paths = [os.path.join(directory, f"{FILE}.{number}" if number else FILE) for number in range(files, -1, -1)]
    fds: list[int] = []
    try:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        heads = [_head(fd) for fd in fds]
        here = heads.index((at.inode, at.head)) if (at.inode, at.head) in heads else -1
        lost = bool(at.inode) and here < 0
        for number in range(max(here, 0), len(fds)):
            offset = at.offset if number == here else 0
            data = os.pread(fds[number], _READ_BYTES, offset)
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                inode, head = heads[number]
                return Lines(whole.splitlines(), Position(inode, offset + len(whole), head), lost)
    finally:
        for fd in fds:
            os.close(fd)
    return None


def _head(fd: int) -> tuple[int, str]:
    """Identifies a file: its inode and its first line, which has a time."""
    return os.fstat(fd).st_ino, os.pread(fd, _HEAD_BYTES, 0).partition(b"\n")[0].decode("latin-1")


class AuditTopic:
    """The thread. Lifecycle: made by the supervisor after the forks, ``start`` when it serves, ``close`` at the end."""

    def __init__(self, stats: StatsSlab, way: OwnWay, settings: Settings) -> None:
        """``way`` leads to the whole cluster, as a superuser where access is controlled."""
        self._copied = stats.counter("audit_topic_records")
        self._gaps = stats.counter("audit_topic_gaps")
        self._way = way
        self._directory = os.path.join(settings.data_dir, DIRECTORY)
        self._topic = settings.audit_topic
        self._files = settings.audit_log_files
        self._node_id = settings.node_id
        self._quiet = RateLimit(per_minute=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit topic", daemon=True)

    def start(self) -> None:
        """Follow the files from here on."""
        self._thread.start()

    def close(self) -> None:
        """Stop. What was not copied is copied after the next start."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        if not self._way.bootstrap:
            log.warning("audit.topic=%s is not written: %s", self._topic, NO_WAY)
            return
        cluster = Cluster(
            self._way.bootstrap, client_id="millstream-audit", timeout_s=_TIMEOUT_S, security=self._way.security
        )
        with cluster:
            while not self._stop.is_set():
                pause_s = LOOK_S
                try:
                    while not self._stop.is_set() and self._copy(cluster):
                        pass
                except (MillstreamError, OSError) as error:
                    pause_s = PAUSE_S
                    if self._quiet.allows():
                        log.warning(
                            "the audit waits for its topic %s: %s%s", self._topic, error, self._quiet.left_out()
                        )
                self._stop.wait(pause_s)

    def _copy(self, cluster: Cluster) -> bool:
        """Write the next lines; False without any."""
        found = next_lines(self._directory, self._position(), self._files)
        if found is None:
            return False
        lines = found.lines
        if found.lost:
            lines = [_lost_record(), *lines]
        key = str(self._node_id).encode()
        batch = build_batch([(key, line, (), _time_ms(line)) for line in lines])
        partitions = self._partitions(cluster)
        cluster.produce(self._topic, partitions[self._node_id % len(partitions)], [batch])
        self._remember(found.after)
        self._copied.inc(len(lines))
        if found.lost:
            self._gaps.inc()
        return True

    def _partitions(self, cluster: Cluster) -> list[int]:
        found = cluster.metadata_once([self._topic]).topics.get(self._topic)
        if found is None or found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._create(cluster)
            raise Unavailable(f"{self._topic} is being created")
        if found.error_code:
            raise error_of(found.error_code, f"topic {self._topic}")
        return sorted(found.partitions)

    def _create(self, cluster: Cluster) -> None:
        connection = cluster.any_connection()
        request = CreateTopicsRequest([CreatableTopic(self._topic, -1, -1, [], [])], int(_TIMEOUT_S * 1000))
        answer = connection.ask(request, CreateTopicsResponse, lowest=4)
        (result,) = answer.topics
        if result.error_code not in _EXISTS:
            raise error_of(result.error_code, f"topic {self._topic}", result.error_message)

    # The position

    def _position(self) -> Position:
        try:
            with open(os.path.join(self._directory, POSITION), "rb") as file:
                return Position(*msgspec.json.decode(file.read(), type=tuple[int, int, str]))
        except (FileNotFoundError, msgspec.MsgspecError):
            return Position(0, 0)

    def _remember(self, position: Position) -> None:
        path = os.path.join(self._directory, POSITION)
        with open(f"{path}.new", "wb") as file:
            file.write(msgspec.json.encode(position))
        os.rename(f"{path}.new", path)


def _lost_record() -> bytes:
    facts = {"time": time_text(), "kind": "lost", "principal": "", "host": "", "why": "files were removed uncopied"}
    return msgspec.json.encode(facts)


def _time_ms(line: bytes) -> int:
    """The time of a record."""
    try:
        text: str = msgspec.json.decode(line, type=_Record).time
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (msgspec.MsgspecError, ValueError):
        return int(time.time() * 1000)


class _Record(msgspec.Struct):
    time: str
