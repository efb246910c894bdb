"""Checks a history of sends, polls and commits for anomalies that a correct log never shows.

It is bookkeeping in linear time, like Jepsen's Kafka workload, not a search: unique values connect every record that
was read to its send. Per partition, all (offset, value) pairs from responses to sends and from polls are combined; they
give the order of the log. The anomalies are:

- ``inconsistent``: two values at one offset;
- ``duplicate``: one value at two offsets, though its producer was idempotent; or acknowledged where it does not stand;
- ``phantom``: a value that was never sent to that partition;
- ``failed-visible``: a value whose send certainly failed;
- ``lost``: an acknowledged value that no poll returned, below an offset that a poll reached;
- ``unseen``: an acknowledged value above everything that was polled (poll to the end before you judge);
- ``reordered``: two sends of one idempotent producer to one partition that stand the other way round;
- ``stale-offset``: a send that started after another's acknowledgement, and stands before it;
- ``poll-back``: a consumer was given an offset at or before the last one, and its position was not set in between;
- ``poll-skip``: … or beyond one that exists in between;
- ``hole``: offsets between two polled neighbours that nothing stands at (only where offsets must be dense);
- ``commit-lost``: the broker forgot an acknowledged commit: it answered less, or less than it had answered before;
- ``commit-phantom``: it answered an offset that no client had committed;
- ``group-skipped``: a group committed past a record that none of its members was given;
- ``aborted-read``, ``precommitted-read``, ``torn``, ``offset-lost``: of transactions (`history_transactions`);
- ``topic-lost``: a topic whose creation was acknowledged and that no client deleted is not listed;
- ``topic-back``: a topic whose deletion was acknowledged is listed;
- ``topic-phantom``: a topic is listed before anybody created it, or though its creation failed;
- ``start-back``: a log starts before an acknowledged deletion of records, or before where it was said to start;
- ``start-phantom``: it starts after every deletion that was requested (only where one was).

An INFO send may exist or not. ``log_starts`` names records that were removed on purpose (retention, DeleteRecords). In
a compacted partition, whose sends have keys, a value may be gone when a later one of its key was seen, and offsets need
not be dense. Commits are expected to only increase, as those of a group do whose members commit what they received.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from millstream.testing.history import (
    Commit,
    Committed,
    History,
    LogStart,
    Outcome,
    Poll,
    Reset,
    Send,
    TopicChange,
    TopicPartition,
    TopicsSeen,
    Trim,
)
from millstream.testing.history_transactions import settled, transaction_anomalies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Anomaly(msgspec.Struct, frozen=True):
    """One anomaly: its kind, its place, and the evidence."""

    kind: str
    place: TopicPartition
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.place}: {self.detail}"


class HistoryBroken(AssertionError):
    """A history with anomalies."""

    def __init__(self, anomalies: list[Anomaly]) -> None:
        shown = "\n".join(f"  {anomaly}" for anomaly in anomalies[:30])
        more = f"\n  … and {len(anomalies) - 30} more" if len(anomalies) > 30 else ""
        super().__init__(f"{len(anomalies)} anomalies:\n{shown}{more}")
        self.anomalies = anomalies


def verify(history: History, *, dense: bool = True, log_starts: Mapping[TopicPartition, int] | None = None) -> None:
    """Raise ``HistoryBroken`` if ``check`` finds anything."""
    anomalies = check(history, dense=dense, log_starts=log_starts)
    if anomalies:
        raise HistoryBroken(anomalies)


def check(
    history: History, *, dense: bool = True, log_starts: Mapping[TopicPartition, int] | None = None
) -> list[Anomaly]:
    """All anomalies of a finished history, partition by partition.

    Args:
        history: with unique values; everything readable must have been polled in the end.
        dense: whether offsets without a record are forbidden (yes without transactions and compaction).
        log_starts: first offset that had to be readable in the end, if it is not 0.
    """
    partitions: dict[TopicPartition, _Partition] = defaultdict(_Partition)
    resets: list[Reset] = []
    changes: list[TopicChange] = []
    listings: list[TopicsSeen] = []
    for operation in settled(history.operations):
        match operation:
            case Send():
                partitions[operation.place].sends.append(operation)
            case Poll():
                partitions[operation.place].polls.append(operation)
            case Reset():
                resets.append(operation)
            case Commit():
                partitions[operation.place].commits.append(operation)
            case Committed():
                partitions[operation.place].committed.append(operation)
            case Trim():
                partitions[operation.place].trims.append(operation)
            case LogStart():
                partitions[operation.place].starts.append(operation)
            case TopicChange():
                changes.append(operation)
            case TopicsSeen():
                listings.append(operation)
    for reset in resets:
        for place in reset.topic_partitions:
            partitions[place].resets.append(reset)
    found = [
        Anomaly(kind, TopicPartition(topic, -1), detail) for kind, topic, detail in _topics_kept(changes, listings)
    ]
    found += [Anomaly(kind, place, detail) for kind, place, detail in transaction_anomalies(history.operations)]
    for place, partition in sorted(partitions.items()):
        partition.index()
        start = (log_starts or {}).get(place, 0)
        checks = (
            partition.offsets(),
            partition.origins(),
            partition.losses(start),
            partition.send_order(),
            partition.poll_order(start, dense=dense),
            partition.commit_order(),
            partition.group_coverage(start),
            partition.start_order(),
        )
        found += [Anomaly(kind, place, detail) for results in checks for kind, detail in results]
    return found


class _Partition:
    """The part of a history about one partition. Each check yields (kind, detail)."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.resets: list[Reset] = []
        self.commits: list[Commit] = []
        self.committed: list[Committed] = []
        self.trims: list[Trim] = []
        self.starts: list[LogStart] = []
        self.last_of_key: dict[str, int] = {}  # offset of the newest value of a key, in a compacted partition
        self.at: dict[int, set[str]] = defaultdict(set)  # offset → values seen there
        self.offsets_of: dict[str, set[int]] = defaultdict(set)  # value → offsets where it was seen
        self.read: set[tuple[int, str]] = set()
        self.by_value: dict[str, Send] = {}

    def index(self) -> None:
        """Combine everything that was seen into one order."""
        for send in self.sends:
            self.by_value[send.value] = send
            if send.outcome is Outcome.OK and send.offset >= 0:
                self._saw(send.offset, send.value)
        for poll in self.polls:
            for offset, value in poll.records:
                self._saw(offset, value)
                self.read.add((offset, value))
        for send in self.sends:
            for offset in self.offsets_of.get(send.value, ()) if send.key else ():
                self.last_of_key[send.key] = max(offset, self.last_of_key.get(send.key, -1))

    def _saw(self, offset: int, value: str) -> None:
        self.at[offset].add(value)
        self.offsets_of[value].add(offset)

    def offsets(self) -> Iterator[tuple[str, str]]:
        """Inconsistent offsets and duplicates."""
        for offset, values in sorted(self.at.items()):
            if len(values) > 1:
                yield "inconsistent", f"offset {offset} holds {sorted(values)}"
        for value, offsets in self.offsets_of.items():
            send = self.by_value.get(value)
            if len(offsets) > 1 and (send is None or send.idempotent):
                yield "duplicate", f"{value} stands at {sorted(offsets)}"

    def origins(self) -> Iterator[tuple[str, str]]:
        """Values without a send, or with one that failed."""
        for offset, value in sorted(self.read):
            send = self.by_value.get(value)
            if send is None:
                yield "phantom", f"{value} at {offset} was never sent here"
            elif send.outcome is Outcome.FAIL:
                yield "failed-visible", f"{value} at {offset}, though its send by {send.process} failed"

    def losses(self, start: int) -> Iterator[tuple[str, str]]:
        """Acknowledged values that no consumer received."""
        highest = max((offset for offset, _ in self.read), default=-1)
        read_values = {value for _, value in self.read}
        for send in self.sends:
            if send.outcome is not Outcome.OK or send.value in read_values or 0 <= send.offset < start:
                continue
            if 0 <= send.offset < self.last_of_key.get(send.key, -1):
                continue  # compaction may have removed it
            kind = "lost" if send.offset <= highest else "unseen"
            yield kind, f"{send.value} of {send.process}, acknowledged at {send.offset}; polled up to {highest}"

    def _first_offset(self, send: Send) -> int | None:
        offsets = self.offsets_of.get(send.value)
        return min(offsets) if offsets else None

    def send_order(self) -> Iterator[tuple[str, str]]:
        """Order of each idempotent producer, and real-time order over all producers."""
        last: dict[str, tuple[int, str]] = {}
        for send in sorted(self.sends, key=lambda s: s.began_ns):
            offset = self._first_offset(send)
            if offset is None or not send.idempotent:
                continue
            before, value = last.get(send.process, (-1, ""))
            if offset < before:
                yield "reordered", f"{send.process} sent {value} ({before}) before {send.value} ({offset})"
            last[send.process] = max((before, value), (offset, send.value))
        yield from self._real_time_order()

    def _real_time_order(self) -> Iterator[tuple[str, str]]:
        done = sorted((s for s in self.sends if s.outcome is Outcome.OK and s.offset >= 0), key=lambda s: s.ended_ns)
        position, highest, witness = 0, -1, ""
        for send in sorted(self.sends, key=lambda s: s.began_ns):
            while position < len(done) and done[position].ended_ns < send.began_ns:
                if done[position].offset > highest:
                    highest, witness = done[position].offset, done[position].value
                position += 1
            offsets = self.offsets_of.get(send.value)
            if offsets and min(offsets) < highest:
                yield (
                    "stale-offset",
                    f"{send.value} at {min(offsets)}, begun after {witness} was acknowledged at {highest}",
                )

    def poll_order(self, start: int, *, dense: bool) -> Iterator[tuple[str, str]]:
        """Each consumer moves forward, record by record, until its position is set."""
        known = sorted(self.at)
        rank = {offset: i for i, offset in enumerate(known)}
        events: list[Poll | Reset] = sorted([*self.polls, *self.resets], key=lambda e: e.at_ns)
        last: dict[str, int] = {}
        for event in events:
            if isinstance(event, Reset):
                last.pop(event.process, None)
                continue
            for offset, _ in event.records:
                before = last.get(event.process)
                last[event.process] = offset
                if before is None:
                    continue
                if offset <= before:
                    yield "poll-back", f"{event.process} was given {offset} after {before}"
                elif self.last_of_key:
                    continue
                elif rank[offset] != rank[before] + 1 and known[rank[offset] - 1] >= start:
                    missing = known[rank[before] + 1]
                    yield "poll-skip", f"{event.process} was given {offset} after {before}; {missing} exists"
                elif dense and offset != before + 1 and offset > start:
                    yield "hole", f"nothing between {before} and {offset}"

    def commit_order(self) -> Iterator[tuple[str, str]]:
        """A group finds what it committed."""
        for group in sorted({c.group for c in self.committed}):
            commits = [c for c in self.commits if c.group == group and c.outcome is not Outcome.FAIL]
            answers = [c for c in self.committed if c.group == group]
            yield from _commits_kept(commits, answers)

    def group_coverage(self, start: int) -> Iterator[tuple[str, str]]:
        """Below a group's committed offset, its members received everything."""
        for group in sorted({c.group for c in self.commits}):
            end = max((c.next_offset for c in self.commits if c.group == group and c.outcome is Outcome.OK), default=0)
            given = {offset for poll in self.polls if poll.group == group for offset, _ in poll.records}
            missing = [offset for offset in sorted(self.at) if start <= offset < end and offset not in given]
            if missing:
                yield "group-skipped", f"{group} committed {end} without having been given {missing[:10]}"

    def start_order(self) -> Iterator[tuple[str, str]]:
        """A log start offset only increases, and only as far as requested."""
        trims = [(t.before, t.began_ns, t.ended_ns, t.outcome) for t in self.trims]
        answers = [(s.offset, s.began_ns, s.ended_ns) for s in self.starts]
        for kind, answered, known in _kept(trims, answers, possible=0):
            if kind == "phantom" and trims:
                yield "start-phantom", f"starts at {answered}, no client asked for more than {known}"
            elif kind == "lost":
                yield "start-back", f"starts at {answered}, after {known}"


def _topics_kept(changes: list[TopicChange], listings: list[TopicsSeen]) -> Iterator[tuple[str, str, str]]:
    """Topics exist from their creation to their deletion."""
    created = {change.topic: change for change in changes if change.exists}
    deleted = {change.topic: change for change in changes if not change.exists}
    for listing in listings:
        names = set(listing.names)
        for topic, creation in created.items():
            deletion = deleted.get(topic)
            if topic not in names:
                untouched = deletion is None or deletion.began_ns > listing.ended_ns or deletion.outcome is Outcome.FAIL
                if creation.outcome is Outcome.OK and creation.ended_ns < listing.began_ns and untouched:
                    yield "topic-lost", topic, "it was created, and is not listed"
            elif deletion is not None and deletion.outcome is Outcome.OK and deletion.ended_ns < listing.began_ns:
                yield "topic-back", topic, "it was deleted, and is listed"
            elif creation.outcome is Outcome.FAIL or creation.began_ns > listing.ended_ns:
                yield "topic-phantom", topic, "it is listed, and was not created"


def _commits_kept(commits: list[Commit], answers: list[Committed]) -> Iterator[tuple[str, str]]:
    """A committed offset in a response lies between the newest certain commit and the newest possible one."""
    group = answers[0].group
    asked = [(c.next_offset, c.began_ns, c.ended_ns, c.outcome) for c in commits]
    reported_at = [(a.next_offset, a.began_ns, a.ended_ns) for a in answers]
    for kind, answered, known in _kept(asked, reported_at, possible=-1):
        if kind == "lost":
            yield "commit-lost", f"{group} had {known}, by a commit or an answer; the broker answered {answered}"
        else:
            yield "commit-phantom", f"{group} got {answered}, no client committed past {known}"


def _kept(
    changes: list[tuple[int, int, int, Outcome]], answers: list[tuple[int, int, int]], *, possible: int
) -> Iterator[tuple[str, int, int]]:
    """Compares changes of an increasing number with responses about it, in time order: (offset, began, ended[,
    outcome]).

    ``possible`` is its maximum before any change. Yields ("lost", response, required minimum) and ("phantom", response,
    possible maximum).
    """
    done = sorted((change for change in changes if change[3] is Outcome.OK), key=lambda change: change[2])
    begun = sorted((change for change in changes if change[3] is not Outcome.FAIL), key=lambda change: change[1])
    earlier = sorted(answers, key=lambda answer: answer[2])
    certain = -1
    next_done = next_begun = next_earlier = 0
    for answered, began, ended in sorted(answers, key=lambda answer: answer[1]):
        while next_done < len(done) and done[next_done][2] < began:
            certain = max(certain, done[next_done][0])
            next_done += 1
        while next_begun < len(begun) and begun[next_begun][1] < ended:
            possible = max(possible, begun[next_begun][0])
            next_begun += 1
        while next_earlier < len(earlier) and earlier[next_earlier][2] < began:
            certain = max(certain, earlier[next_earlier][0])
            next_earlier += 1
        if answered < certain:
            yield "lost", answered, certain
        elif answered > possible:
            yield "phantom", answered, possible
