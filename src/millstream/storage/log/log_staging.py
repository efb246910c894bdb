"""What receiving a log needs of its shard's storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.link import CallId
    from millstream.storage.messages.receiving import Resume, Resumed, Stage, Staged, StageEnd


class LogStaging(Protocol):
    """The worker's part, as a shard's storage gives it (``maintenance.adoption.StagedLogs``)."""

    def next_id(self) -> CallId:
        """A number for the next command."""
        ...

    def stage(self, command: Stage, done: Callable[[Staged], None]) -> None:
        """Write batches that have arrived. The bytes stay in the arena until ``done``."""
        ...

    def stage_end(self, command: StageEnd, done: Callable[[Staged], None]) -> None:
        """Complete the files."""
        ...

    def left_of(self, log_directory: str) -> list[str]:
        """Directories with what an earlier start received of a log. They are the caller's from now on."""
        ...

    def put_back(self, log_directory: str, directories: list[str]) -> None:
        """The directories of ``left_of`` were not used; the next attempt may use them."""
        ...

    def resume(self, command: Resume, done: Callable[[Resumed], None]) -> None:
        """Continue one of the directories of ``left_of``."""
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
