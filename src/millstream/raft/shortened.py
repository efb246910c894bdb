"""An append that ends earlier: what a follower takes that has room for a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.core.raft.messages import TermRun

if TYPE_CHECKING:
    from millstream.core.raft.messages import Append
    from millstream.model.replication import RaftPosition


def shortened(append: Append, end: RaftPosition) -> Append:
    """The append with the entries up to ``end``, which lies between two of them and behind ``prev``."""
    runs: list[TermRun] = []
    for run in append.runs:
        if run.end_position >= end:
            runs.append(TermRun(end, run.term))
            break
        runs.append(run)
    controls = tuple(entry for entry in append.controls if entry.position < end)
    return msgspec.structs.replace(append, runs=tuple(runs), controls=controls)
