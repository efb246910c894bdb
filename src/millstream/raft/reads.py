"""Read barriers of one group that wait, and the error for each refusal of a Raft core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.ready import Refusal
from millstream.errors import Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.model.replication import ReadId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.raft.raft import Raft
    from millstream.core.raft.ready import ReadConfirmed
    from millstream.errors import MillstreamError
    from millstream.model.replication import RaftPosition, TimeUs


class Reads:
    """The callers that wait for each barrier. Each is called once."""

    __slots__ = ("_name", "_next_id", "_waiting")

    def __init__(self, name: str) -> None:
        """``name`` is that of the log, for errors."""
        self._name = name
        self._next_id = ReadId(0)
        self._waiting: dict[ReadId, Callable[[MillstreamError | None], None]] = {}

    def begin(self, core: Raft, now: TimeUs, done: Callable[[MillstreamError | None], None]) -> None:
        """Start to prove that the replica of ``core`` leads now."""
        read_id = self._next_id
        refusal = core.read_barrier(now, read_id)
        if refusal is not None:
            done(refused(self._name, refusal))
            return
        self._next_id = ReadId(read_id + 1)
        self._waiting[read_id] = done

    def end(self, confirmed: Sequence[ReadConfirmed], failed: Sequence[ReadId], committed: RaftPosition) -> None:
        """Barriers have passed, or can no longer pass. ``committed`` is what this replica has announced."""
        for read_id in failed:
            self._waiting.pop(read_id)(refused(self._name, Refusal.NOT_LEADER))
        for read in confirmed:
            assert read.position <= committed, "a leader serves reads that its log does not have"
            self._waiting.pop(read.read_id)(None)

    def fail_all(self) -> None:
        """The group is being closed."""
        for read_id in list(self._waiting):
            self._waiting.pop(read_id)(refused(self._name, Refusal.NOT_LEADER))


def refused(name: str, refusal: Refusal) -> MillstreamError:
    """The error for a request that the core refuses."""
    message = f"{name}: {refusal.value}"
    if refusal in (Refusal.NOT_LEADER, Refusal.TRANSFERRING):
        return Retriable(message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if refusal is Refusal.NOT_READY:
        return Unavailable(message, ErrorCode.LEADER_NOT_AVAILABLE)
    return Rejected(message, ErrorCode.INELIGIBLE_REPLICA)
