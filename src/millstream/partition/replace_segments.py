"""ReplaceSegments on a partition's home shard. A partition that is not tiered has nothing to replace, and the leader of
a shared one joins its objects itself (``tiers.shared_joins``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import OutcomeUnknown, Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.partition.asked import Asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.errors import MillstreamError
    from millstream.partition.partition import Partition
    from millstream.tiers.replacing import Replacement, Replacing


def replace_segments(
    partition: Partition,
    replacing: Replacing | None,
    wanted: Replacement,
    done: Callable[[int | MillstreamError], None],
) -> None:
    """Call ``done`` once, with the manifest's version after the replacement, or with why not."""
    refusal = OutcomeUnknown(f"{partition.log.name}: the partition failed")
    asked = Asked["int | MillstreamError"](partition, "replacement", done, refusal)
    asked.run(_replace_segments, partition, replacing, wanted, asked)


def _replace_segments(
    partition: Partition,
    replacing: Replacing | None,
    wanted: Replacement,
    done: Callable[[int | MillstreamError], None],
) -> None:
    if partition.refusal:
        done(Retriable(f"{partition.log.name} does not lead here", partition.refusal))
    elif partition.config.is_shared:
        why = f"{partition.name} is a shared topic: its brokers join its objects themselves"
        done(Rejected(why, ErrorCode.INVALID_TOPIC_EXCEPTION))
    elif partition.archive is None or replacing is None:
        done(Rejected(f"{partition.name} is not tiered", ErrorCode.INVALID_TOPIC_EXCEPTION))
    else:
        replacing.replace(partition.archive, wanted, done)
