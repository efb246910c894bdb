"""What receiving a log needs of its shard's storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.messages.receiving import Stage, Staged, StageEnd


class LogStaging(Protocol):
    """The worker's part, as a shard's storage gives it (`maintenance.adoption.StagedLogs`)."""

    def next_id(self) -> int:
        """A number for the next command."""
        ...

    def stage(self, command: Stage, done: Callable[[Staged], None]) -> None:
        """Write batches that have arrived. The bytes stay in the arena until ``done``."""
        ...

    def stage_end(self, command: StageEnd, done: Callable[[Staged], None]) -> None:
        """Complete the files."""
        ...

    def drop(self, log_directory: str, directory: str) -> None:
        """Remove what was received for a log."""
        ...

    def moved(self, directory: str) -> None:
        """What was received into ``directory`` has another name now."""
        ...

    def is_busy(self, log_directory: str) -> bool:
        """Whether what was received for a log before is still being removed."""
        ...
