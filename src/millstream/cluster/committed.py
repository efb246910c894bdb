"""The committed commands of the controller's log, in order, as the Raft group commits them.

::

    group commits ──advance──► log: cache, else the worker ──► deliver(base, commands), one batch at a time

Only committed commands are delivered, so a truncation revokes nothing. After a start the log may hold entries beyond
the group's commit; they are delivered when a leader reports them as committed. A command is delivered only when this
broker's own disk has it. Otherwise the next start might not find a partition that the command created: recovery replays
a partition only if the log on this disk names it.

**Failure.** A read that fails is repeated; a line says so. A batch that does not decode is ``Corruption``: this broker
no longer knows the cluster, and the shard stops. **Overload.** One read is in flight at a time, of at most
`READ_BYTES`.
"""

from collections.abc import Callable
from typing import Final

from millstream.core.controller.commands import AnyCommand, decode_command
from millstream.errors import MillstreamError
from millstream.iobuf import IoBuf
from millstream.model.quantities import Offset
from millstream.raft.group import Group
from millstream.shard.reactor import Reactor
from millstream.telemetry.log import log as operator_log
from millstream.wire.batch import iter_batches
from millstream.wire.records import iter_records

READ_BYTES: Final = 1 << 20
_RETRY_US: Final = 200_000
_SYNC_US: Final = 1_000
"""Interval between checks of what this broker's disk has."""

Deliver = Callable[[int, tuple[AnyCommand, ...]], None]


class CommittedCommands:
    """Reads one group's log from ``next_offset`` on.

    Lifecycle: made with the controller; ``advance`` after each commit. Shard: the controller's.
    Invariant: every command below ``next_offset`` was delivered, or is part of the state that the broker loaded.
    """

    def __init__(self, reactor: Reactor, group: Group, next_offset: int, deliver: Deliver) -> None:
        """``deliver(base, commands)`` gets commands that follow each other; ``base`` is the revision before them."""
        self._reactor = reactor
        self._group = group
        self._deliver = deliver
        self._reading = False
        self._stopped = False
        self.next_offset = next_offset

    def advance(self) -> None:
        """The group's commit has moved: read the new commands, in a callback of their own."""
        if not self._reading:
            self._reading = True
            self._reactor.call_soon(self._read)

    def stop(self) -> None:
        """Stop delivering."""
        self._stopped = True

    def _read(self) -> None:
        if self._stopped:
            return
        log = self._group.log
        committed = self._group.committed_offset
        start, end = Offset(self.next_offset), Offset(min(committed, log.durable_offset))
        if start >= committed:
            self._reading = False
            return
        if start >= end:
            self._reactor.call_later(_SYNC_US, self._read)
            return
        found = log.read(start, end, READ_BYTES, True)
        if found is None:
            log.read_cold(start, end, READ_BYTES, True, self._take)
        else:
            self._take(found)

    def _take(self, found: IoBuf | MillstreamError) -> None:
        if isinstance(found, MillstreamError):
            operator_log.warning("the controller's log cannot be read now: %s; trying again", found.message)
            self._reactor.call_later(_RETRY_US, self._read)
            return
        data = bytes(found)
        found.release()
        if self._stopped:
            return
        for batch in iter_batches(data):
            records = [record for record in iter_records(batch) if record.offset >= self.next_offset]
            if not records:
                continue
            base = self.next_offset
            assert records[0].offset == base, f"command {records[0].offset} of the log follows {base}"
            self.next_offset = base + len(records)
            self._deliver(base, tuple(decode_command(record.value or b"") for record in records))
        self._reactor.call_soon(self._read)
