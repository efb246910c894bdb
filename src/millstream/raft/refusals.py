"""The error for each refusal of a Raft core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.raft.ready import Refusal
from millstream.errors import Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from millstream.errors import MillstreamError


def refused(name: str, refusal: Refusal) -> MillstreamError:
    """The error for a request that the core refuses."""
    message = f"{name}: {refusal.value}"
    if refusal in (Refusal.NOT_LEADER, Refusal.TRANSFERRING):
        return Retriable(message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if refusal is Refusal.NOT_READY:
        return Unavailable(message, ErrorCode.LEADER_NOT_AVAILABLE)
    return Rejected(message, ErrorCode.INELIGIBLE_REPLICA)
