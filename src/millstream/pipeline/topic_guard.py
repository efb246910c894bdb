"""The guard of a topic sink: which state directory a pipeline writes to a topic from.

A topic has no place for a record of its batches: what tells a repeated batch is the checkpoint. So a run with another
state directory would write everything again, and two of them would write everything twice. The guard keeps them apart.
It is an offset of the group ``<pipeline>.<sink>``: its number counts the runs, and its metadata name the
state directory, the run and, for people, the process.

::

    start a transaction of that name ──► read the guard ──► another directory? refused
    │                                                       none, or ours? write the guard in the transaction, commit
    └ fences a run that is between these steps: of two first runs one is refused

At each batch a run reads the guard, and ends if another run has claimed the sink since. ``--replay`` claims it from
any directory and writes the topic again. A guard is lost when the group's offsets expire
(``offsets.retention.minutes``, 7 days without a run).
"""

import os
import socket
import time
import uuid
from typing import Final

import msgspec

from millstream.client import Cluster
from millstream.client.coordinators import Coordinators
from millstream.client.transactional import (
    FENCED,
    MarkedOffset,
    Transaction,
    end_transactions,
    marked_offset,
)
from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.pipeline.checks import sink_name
from millstream.pipeline.model import Pipeline, Sink
from millstream.pipeline.state import SinkState
from millstream.pipeline.tables.guard import TakenOver

_CLAIM_TIMEOUT_MS: Final = 60_000
_LOOK_S: Final = 0.01


class _Guard(msgspec.Struct, frozen=True):
    """What the metadata of the offset say."""

    state: str
    run: str
    by: str


class TopicGuard:
    """The claim of one run of a sink. ``claim`` comes first; ``require`` may raise at any batch after it."""

    def __init__(self, pipeline: str, sink: str, topic: str, state: str) -> None:
        """``state`` is the id of the state directory."""
        self._group = f"{pipeline}.{sink}"
        self._what = f"pipeline {pipeline}, topic {topic}"
        self._topic = topic
        by = f"host {socket.gethostname()}, process {os.getpid()}"
        self._own = _Guard(state, uuid.uuid4().hex, by)

    def inspect(self, cluster: Cluster) -> None:
        """Refuse a sink that ``claim`` would refuse; claims nothing.

        Raises:
            Rejected: it is written from another state directory.
        """
        self._require_state(self._read(Coordinators(cluster))[0])

    def claim(self, cluster: Cluster, *, replay: bool = False) -> None:
        """Claim the sink for this run.

        Raises:
            Rejected: it is written from another state directory, and nothing is to be written again.
            Unavailable: another run claims it at the same time, or no coordinator answers.
        """
        coordinators = Coordinators(cluster)
        transaction = self._begin(coordinators)
        committed = False
        try:
            found, number = self._read(coordinators)
            if not replay:
                self._require_state(found)
            metadata = msgspec.json.encode(self._own).decode()
            transaction.add_offset(self._group, (self._topic, 0), MarkedOffset(number + 1, metadata))
            self._end(coordinators, transaction, cluster.timeout_s)
            committed = True
            self._await(coordinators, number + 1, cluster.timeout_s)
        except MillstreamError as error:
            if error.code in FENCED:
                raise Unavailable(
                    f"{self._what}: another run of this pipeline started at the same time; start it again"
                ) from error
            raise
        finally:
            if not committed:
                end_transactions(coordinators, [transaction.open], commit=False, timeout_s=1)

    def require(self, cluster: Cluster) -> None:
        """Refuse to continue if another run has claimed the sink.

        Raises:
            TakenOver: one has.
        """
        found, _ = self._read(Coordinators(cluster))
        if found is not None and found.run != self._own.run:
            raise TakenOver(f"{self._what}: another run of this pipeline has taken over ({found.by}); this run ends")

    def _require_state(self, found: _Guard | None) -> None:
        if found is not None and found.state != self._own.state:
            raise Rejected(
                f"{self._what}: it is written from another state directory ({found.by}), and only that one knows "
                "which records are there. Run the pipeline there, or copy that directory; 'millstream pipeline run "
                "--replay' takes over and writes every row again"
            )

    def _begin(self, coordinators: Coordinators) -> Transaction:
        try:
            return Transaction.begin(coordinators, self._group, _CLAIM_TIMEOUT_MS)
        except Rejected as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise Rejected(
                f"{self._what}: the broker serves no transactions; with delivery: at-least-once the topic is written "
                "without them, and readers must tolerate records that are there twice"
            ) from error

    def _read(self, coordinators: Coordinators) -> tuple[_Guard | None, int]:
        marked = marked_offset(coordinators, self._group)
        if marked.offset < 0:
            return None, 0
        try:
            return msgspec.json.decode(marked.metadata, type=_Guard), marked.offset
        except msgspec.DecodeError as error:
            raise Rejected(f"the group {self._group} has offsets that no pipeline has committed") from error

    def _await(self, coordinators: Coordinators, number: int, timeout_s: float) -> None:
        """Wait until every run reads this claim: the first offset of a group is shown when its marker is written, which
        is after the end of the transaction was answered.

        Raises:
            Unavailable: it is not shown in time.
        """
        end_s = time.monotonic() + timeout_s
        while self._read(coordinators)[1] < number:
            if time.monotonic() > end_s:
                raise Unavailable(f"{self._what}: the claim of this run is not shown after {timeout_s:g} s")
            time.sleep(_LOOK_S)

    @staticmethod
    def _end(coordinators: Coordinators, transaction: Transaction, timeout_s: float) -> None:
        failed = end_transactions(coordinators, [transaction.open], commit=True, timeout_s=timeout_s)
        for error in failed.values():
            raise error


def topic_guard(pipeline: Pipeline, sink: Sink, state: SinkState) -> TopicGuard | None:
    """The guard of a topic sink; None where rows may be there twice."""
    if sink.delivery == "at-least-once":
        return None
    return TopicGuard(pipeline.pipeline, sink_name(sink), str(sink.topic), state.identity())
