"""Installs: a leader sends the files of its log to a replica whose missing entries it no longer has one by one.

::

    leader                                              follower
    core asks for files (`InstallNeeded`)
    ──InstallOffer: the point────────────────────────►  core orders them (`Install`)
    ◄─FilesWanted──  one part at a time  ──FilesPart─►  the worker checks and writes them beside the log
                                                        all there: ``events.on_install``: the owner takes this replica
                                                        down, has the files put in place, and opens it again
    appends continue from there

A replica that is opened again on new files starts as after a restart, from its disk. No state of the old log or the old
core survives.

**Bad input.** A part that is damaged, does not follow or is not what was asked for ends the attempt, and the log is as
it was. **Crash.** The log is as it was; the next start continues with what was received, if that is still valid
(`LogImport.resume`). **Overload.** A part that finds no memory
is asked for again; `RaftShard` bounds how many groups receive at once, and `Installs` how fast; a part is read only
when it is asked for, so a follower's disk paces the leader. **Loss.** A part that does not come is asked for `TRIES`
times. The next offer, of the same leader or another, starts the next attempt, which continues with what is here already
(`KEPT_US` long).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import Corruption, MillstreamError, Retriable
from millstream.iobuf import ArenaFull
from millstream.iobuf.receive import copied
from millstream.model.quantities import Offset
from millstream.model.replication import node_of
from millstream.peers.file_items import FilesPart, FilesWanted
from millstream.peers.raft_items import RaftItem
from millstream.raft.installs import InstallProgress
from millstream.storage.log.exporting import (
    ExportedBatches,
    choose_end,
    decode_description,
    describe,
    encode_description,
)
from millstream.storage.log.importing import LogImport, StagedFiles
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.raft.ready import Install, InstallNeeded
    from millstream.model.replication import RaftPosition, ReplicaId
    from millstream.raft.host import GroupHost
    from millstream.raft.replicated import ReplicatedGroup

PART_BYTES: Final = 256 * 1024
"""Batches of one part, unless a single batch is larger."""

WAIT_US: Final = 2_000_000
"""Time after which a missing part is requested again."""

TRIES: Final = 5

KEPT_US: Final = 600_000_000
"""How long received parts of an interrupted attempt are kept for the next attempt."""

_TELL_US: Final = 10_000_000
_WAIT_MIN_US: Final = 1_000


class _Export(NamedTuple):
    """What this leader offers."""

    end: RaftPosition
    end_offset: Offset
    description: bytes


class Sender:
    """A leader's side for one group. Keeps the newest offer; everything else is asked for again."""

    __slots__ = ("_export", "_group", "_host")

    def __init__(self, group: ReplicatedGroup, host: GroupHost) -> None:
        self._group = group
        self._host = host
        self._export: _Export | None = None

    def offer(self, needed: InstallNeeded) -> None:
        """Choose the files for a replica, and offer them."""
        group = self._group
        log = group.log
        end_offset = choose_end(log, Offset(group.committed_offset))
        end = log.raft.controls.position_before(end_offset)
        if not needed.minimum <= end <= group.committed_position:
            self._host.call_later(WAIT_US, partial(self._choose_again, needed.to))
            return
        if self._export is None or self._export.end != end:
            description = describe(log, end_offset, group.folded_at(end))
            self._export = _Export(end, end_offset, encode_description(description))
        operator_log.info(
            "%s: replica %d needs entries from before position %d, which are not kept one by one;"
            " it is sent the log's files up to offset %d",
            log.name,
            needed.to,
            needed.minimum,
            end_offset,
        )
        group.core.offer_install(needed.to, end)
        self._host.schedule(group)

    def _choose_again(self, to: ReplicaId) -> None:
        if not self._group.closed:
            self._group.core.install_failed(to)
            self._host.schedule(self._group)

    def serve(self, to: ReplicaId, wanted: FilesWanted) -> None:
        """Send what a replica asks for."""
        export = self._export
        if export is None or export.end != wanted.end or not self._group.core.leads:
            self._refuse(to, wanted)
        elif wanted.description:
            self._describe(to, wanted, export)
        else:
            log = self._group.log
            log.read_for_replica(wanted.offset, export.end_offset, PART_BYTES, partial(self._on_read, to, wanted))

    def _describe(self, to: ReplicaId, wanted: FilesWanted, export: _Export) -> None:
        size = len(export.description)
        try:
            body = copied(self._group.log.host.arena, [memoryview(export.description)])
        except ArenaFull:
            return  # it is asked for again
        part = FilesPart(wanted.term, wanted.end, wanted.offset, wanted.offset, description=True)
        self._host.transport.send(to, RaftItem(self._group.group, part, 0, size), body)

    def _on_read(self, to: ReplicaId, wanted: FilesWanted, found: ExportedBatches | MillstreamError) -> None:
        group = self._group
        if isinstance(found, MillstreamError):
            if not group.closed:
                group.warn(f"files for replica {to} can't be read: {found.message}")
                self._refuse(to, wanted)
            return
        size = len(found.buf)
        if group.closed or not size:
            found.buf.release()
            if not group.closed:
                self._refuse(to, wanted)
            return
        part = FilesPart(wanted.term, wanted.end, wanted.offset, found.next_offset)
        self._host.installs.sent_bytes.inc(size)
        self._host.transport.send(to, RaftItem(group.group, part, 0, size), found.buf)

    def _refuse(self, to: ReplicaId, wanted: FilesWanted) -> None:
        """End this attempt. The next offer chooses its files again."""
        group = self._group
        part = FilesPart(wanted.term, wanted.end, wanted.offset, wanted.offset, failed=True)
        self._host.transport.send(to, RaftItem(group.group, part))
        if group.core.leads:
            self._export = None
            group.core.install_failed(to)
            self._host.schedule(group)


class Receiver:
    """A follower's side for one group.

    Invariants: ``_install`` is set exactly while an attempt is in progress, and the group is then among those of its
    shard that receive. ``_asked`` counts the questions; an answer to an earlier one changes nothing.
    """

    __slots__ = (
        "_asked",
        "_begun_us",
        "_group",
        "_host",
        "_import",
        "_install",
        "_kept",
        "_part_bytes",
        "_told_us",
        "_tries",
        "_writing",
    )

    def __init__(self, group: ReplicatedGroup, host: GroupHost) -> None:
        self._group = group
        self._host = host
        self._install: Install | None = None
        self._import: LogImport | None = None
        self._kept: LogImport | None = None
        """What an interrupted attempt has received."""
        self._asked = 0
        self._tries = 0
        self._writing = False
        """The worker is writing a part, or is completing the files."""
        self._begun_us = 0
        self._told_us = 0
        self._part_bytes = 0

    def begin(self, install: Install) -> None:
        """Fetch what the leader offers."""
        self._interrupt()
        group = self._group
        if group.events.on_install is None or not self._host.installs.may_receive(group.group):
            group.core.give_up_install(install)
            return
        self._install = install
        self._begun_us = self._told_us = self._host.now()
        operator_log.info(
            "%s: receives the log's files up to position %d from replica %d",
            group.log.name,
            install.end.position,
            install.source,
        )
        self._ask()

    def close(self) -> None:
        """End the attempt without a log line, and drop the received parts."""
        self._interrupt()
        self._drop_kept()

    def _interrupt(self) -> None:
        """End the attempt, and keep the received parts for the next one."""
        self._asked += 1
        self._install = None
        self._writing = False
        self._host.installs.receives_no_more(self._group.group)
        self._host.installs.ended(self._group.group)
        receiving, self._import = self._import, None
        if receiving is not None and receiving.is_idle:
            self._drop_kept()
            self._kept = receiving
            self._host.call_later(KEPT_US, partial(self._drop_kept, receiving))
        elif receiving is not None:
            receiving.drop()

    def _drop_kept(self, kept: LogImport | None = None) -> None:
        """Forget what was kept; with ``kept`` only if it is that."""
        if self._kept is not None and kept in (None, self._kept):
            self._kept.drop()
            self._kept = None

    def _ask(self) -> None:
        install = self._install
        assert install is not None
        self._tries = 0
        self._send(install)

    def _send(self, install: Install) -> None:
        self._asked += 1
        self._tries += 1
        offset = Offset(0) if self._import is None else self._import.next_offset
        wanted = FilesWanted(self._group.core.term, install.end.position, offset, description=self._import is None)
        self._host.transport.send(install.source, RaftItem(self._group.group, wanted))
        self._host.call_later(WAIT_US, partial(self._again, self._asked))

    def _again(self, asked: int) -> None:
        """A part has not come in time."""
        install = self._install
        if install is None or asked != self._asked or self._writing:
            return
        if self._tries >= TRIES:
            self._give_up(f"replica {install.source} does not answer", resumable=True)
        else:
            self._send(install)

    def take(self, sender: ReplicaId, part: FilesPart, views: Sequence[memoryview]) -> None:
        """A part has arrived. The views are valid during the call."""
        install = self._install
        if install is None or self._writing or sender != install.source or part.end != install.end.position:
            return
        if part.failed:
            self._give_up(f"replica {sender} can no longer send them", resumable=True)
            return
        try:
            if self._import is None:
                if part.description:
                    self._open(install, b"".join(views))
            elif not part.description and part.offset == self._import.next_offset:
                self._write(self._import, part, views)
        except (Corruption, Retriable) as error:
            self._give_up(error.message)

    def _open(self, install: Install, data: bytes) -> None:
        description = decode_description(data)
        base = description.log_state.base
        if base.position != install.end.position or base.term != install.end.term:
            raise Corruption(f"what replica {install.source} sends ends at position {base.position}")
        kept = self._kept
        if kept is not None and kept.continue_to(description):
            self._kept = None
            self._import = kept
            operator_log.info("%s: continues at offset %d, as received before", self._group.log.name, kept.next_offset)
        else:
            self._drop_kept()
            if self._group.log.host.staging.is_busy(self._group.log.directory):
                raise Retriable("the files of an earlier attempt are still being removed")
            receiving = self._import = LogImport(self._group.log, description)
            if receiving.resume(partial(self._resumed, receiving, install)):
                self._writing = True
                return
        self._note(self._import, install)
        self._go_on(self._import)

    def _resumed(self, receiving: LogImport, install: Install, found: bool) -> None:
        """The worker has looked for what was received before the start."""
        assert self._import is receiving, "an attempt that was interrupted gets no result"
        self._writing = False
        if not found:
            self._give_up("what was received before the start is of no use")
            return
        operator_log.info(
            "%s: continues at offset %d, as received before the start", self._group.log.name, receiving.next_offset
        )
        self._note(receiving, install)
        self._go_on(receiving)

    def _note(self, receiving: LogImport, install: Install) -> None:
        """Publish the progress."""
        self._host.installs.received(
            InstallProgress(
                self._group.group,
                self._group.log.name,
                node_of(install.source),
                receiving.first_offset,
                receiving.next_offset,
                receiving.end_offset,
            )
        )

    def _write(self, receiving: LogImport, part: FilesPart, views: Sequence[memoryview]) -> None:
        if part.next_offset <= part.offset or not views:
            raise Corruption(f"a part from offset {part.offset} to {part.next_offset}")
        try:
            receiving.add(views, part.next_offset, partial(self._written, receiving))
        except ArenaFull:
            return  # it is asked for again
        self._writing = True
        self._part_bytes = sum(map(len, views))

    def _written(self, receiving: LogImport, failure: MillstreamError | None) -> None:
        if failure is not None:
            self._writing = False
            self._give_up(failure.message)
            return
        now = self._host.now()
        self._host.installs.received_bytes.inc(self._part_bytes)
        if self._install is not None and self._import is receiving:
            self._note(receiving, self._install)
        self._tell(receiving, now)
        self._asked += 1
        wait_us = self._host.installs.wait_us(self._group.group, now, self._part_bytes)
        if wait_us < _WAIT_MIN_US:
            self._after_pause(receiving, self._asked)
        else:
            self._host.call_later(wait_us, partial(self._after_pause, receiving, self._asked))

    def _after_pause(self, receiving: LogImport, asked: int) -> None:
        if asked == self._asked and self._import is receiving:
            self._writing = False
            self._go_on(receiving)

    def _tell(self, receiving: LogImport, now: int) -> None:
        """Say how far it is, now and then."""
        if now - self._told_us >= _TELL_US:
            self._told_us = now
            first, last = receiving.first_offset, receiving.end_offset
            percent = 100 * (receiving.next_offset - first) // max(last - first, 1)
            operator_log.info("%s: received %d %% of the log's files", self._group.log.name, percent)

    def _go_on(self, receiving: LogImport) -> None:
        if receiving.is_complete:
            self._writing = True
            receiving.finish(partial(self._finished, receiving))
        else:
            self._ask()

    def _finished(self, receiving: LogImport, failure: MillstreamError | None) -> None:
        group, install = self._group, self._install
        assert install is not None
        if failure is not None:
            self._give_up(failure.message)
            return
        if group.core.adopt(self._host.now(), install) is None:
            self.close()  # the log has come so far by itself
            return
        self._import = None  # it is the owner's now
        self._host.installs.ended(group.group)
        self._host.installs.adopted.inc()
        on_install = group.events.on_install
        assert on_install is not None
        operator_log.info(
            "%s: received the log's files up to offset %d in %d ms",
            group.log.name,
            receiving.end_offset,
            (self._host.now() - self._begun_us) // 1000,
        )
        on_install(StagedFiles(receiving.directory, install.end, receiving.end_offset))

    def _give_up(self, why: str, *, resumable: bool = False) -> None:
        install = self._install
        assert install is not None
        self._group.warn(f"the log's files are not received: {why}; the leader offers them again")
        if resumable:
            self._interrupt()
        else:
            self.close()
        self._group.core.give_up_install(install)
        self._host.schedule(self._group)
