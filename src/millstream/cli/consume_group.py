"""The records of a consumer group's member for ``millstream consume --group``.

The member commits what the command has printed. Leaving takes no longer than the time-out: if the broker does not
answer, it is uncertain whether the last records are committed, and ``close`` says so.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from millstream.cli.broker_watch import BrokerWatch
from millstream.cli.connect import admin_client, consumer_client, explained, partition_numbers, reachable
from millstream.cli.explained import explain, no_answer
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.positions import Anchor, parse_position

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.cli.confluent import Consumer, KafkaError, KafkaException, Message

_WAIT_S = 0.2
_ATTEMPT_S = 1.0
"""Time between two attempts to connect to a broker that may be gone, in s."""


class GroupSource:
    """Reads as a member of a group, and commits what was printed.

    ``_last`` has the last printed record of each partition that may not be committed yet. The client's
    callback for errors sets ``_suspected``; while it is set, ``read`` connects to the broker at most once in
    ``_ATTEMPT_S``.
    """

    def __init__(
        self, topics: Sequence[str], group: str, start: str | None, isolation: str, bootstrap: str, timeout_s: float
    ) -> None:
        """``topics`` are names, or one regular expression that starts with ``^``."""
        self._what = f"topic '{topics[0]}'" if len(topics) == 1 else "topics"
        self._group = group
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._watch = BrokerWatch(bootstrap)
        self._suspected = False
        self._next_attempt_s = 0.0
        self._last: dict[tuple[str, int], Message] = {}
        self._at_end: set[tuple[str, int]] = set()
        self._printed_any = False
        self._consumer = _joining(topics, group, start, bootstrap, timeout_s, self._configuration(group, isolation))

    def read(self, limit: int) -> Sequence[Message]:
        with explained(self._what, self._bootstrap):
            messages = self._consumer.consume(limit, timeout=_WAIT_S)
        records = [message for message in messages if self._is_record(message)]
        self._check_broker()
        return records

    def printed(self, message: Message) -> None:
        self._last[_place(message)] = message
        self._printed_any = True

    def flushed(self) -> None:
        for message in self._last.values():
            self._consumer.store_offsets(message)
        self._last.clear()

    def reached_end(self) -> bool:
        assigned = {(partition.topic, partition.partition) for partition in self._consumer.assignment()}
        return bool(assigned) and assigned <= self._at_end

    def close(self) -> None:
        """Commit and leave the group within the time-out; raises CommandFailed otherwise."""
        leaving = _Leaving(self._consumer, commit=self._printed_any)
        leaving.start()
        leaving.join(self._timeout_s)
        if leaving.is_alive():
            raise CommandFailed(
                f"group '{self._group}': the last printed records may not be committed; the next consumer would print "
                f"them again; {no_answer(self._bootstrap, self._timeout_s)}"
            )
        if leaving.failure is not None:
            with explained(f"group '{self._group}'", self._bootstrap):
                raise leaving.failure

    def _is_record(self, message: Message) -> bool:
        """Whether the message is a record. Notes ends of partitions; raises CommandFailed for a permanent error."""
        error = message.error()
        if error is None:
            self._at_end.discard(_place(message))
            return True
        if error.name() == "_PARTITION_EOF":
            self._at_end.add(_place(message))
        elif not _passes_by_itself(error):
            raise explain(error, self._what, self._bootstrap)
        return False

    def _suspect(self, error: KafkaError) -> None:
        self._suspected = self._suspected or _passes_by_itself(error)

    def _check_broker(self) -> None:
        if not self._suspected or time.monotonic() < self._next_attempt_s:
            return
        self._next_attempt_s = time.monotonic() + _ATTEMPT_S
        self._watch.report(there=reachable(self._bootstrap))
        self._suspected = self._watch.gone

    def _configuration(self, group: str, isolation: str) -> dict[str, Any]:
        return {
            "group.id": group,
            "error_cb": self._suspect,
            "isolation.level": isolation,
            "enable.auto.commit": True,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        }


class _Leaving(threading.Thread):
    """Commits and closes in a thread, because these calls have no timeout and block signals."""

    def __init__(self, consumer: Consumer, *, commit: bool) -> None:
        super().__init__(name="leaving", daemon=True)
        self._consumer = consumer
        self._commit = commit
        self.failure: KafkaException | None = None

    def run(self) -> None:
        from millstream.cli.confluent import KafkaException

        try:
            if self._commit:
                self._consumer.commit(asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].name() != "_NO_OFFSET":
                self.failure = failure
        finally:
            self._consumer.close()


def _joining(
    topics: Sequence[str], group: str, start: str | None, bootstrap: str, timeout: float, settings: dict[str, Any]
) -> Consumer:
    """A consumer that joins the group; ``start`` counts where the group has no offset yet."""
    position = parse_position(start or "beginning", "--from")
    if position.anchor not in (Anchor.BEGINNING, Anchor.END):
        raise WrongUsage(
            f"--from {start} cannot be used with --group, which starts where it stands; "
            f"'millstream group reset {group} --topic {topics[0]} --to {start} --execute' moves it"
        )
    for topic in topics:
        if not topic.startswith("^"):
            partition_numbers(admin_client(bootstrap), topic, bootstrap, timeout)
    reset = "earliest" if position.anchor is Anchor.BEGINNING else "latest"
    consumer = consumer_client(bootstrap, settings | {"auto.offset.reset": reset})
    consumer.subscribe(list(topics))
    return consumer


def _passes_by_itself(error: KafkaError) -> bool:
    """Whether librdkafka retries by itself (a broker restarts, a leader moves)."""
    return error.retriable() or error.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE")


def _place(message: Message) -> tuple[str, int]:
    topic, partition = message.topic(), message.partition()
    assert topic is not None and partition is not None, "a record or an end that was fetched has a place"
    return topic, partition
