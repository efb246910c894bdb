"""One commit, tried until it is known to be there.

A commit that raises is not known to have failed. The table is asked; only if it does not have the batch, the commit is
tried again. Nothing is deleted on the way.
"""

import logging
from collections.abc import Callable
from typing import Final

from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.pipeline.tables.guard import Moved
from millstream.pipeline.tables.table import CommitRecord, Table

_LOG: Final = logging.getLogger("millstream.pipeline")
ATTEMPTS: Final = 4
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0


def attempted(
    table: Table,
    record: CommitRecord,
    commit: Callable[[], object],
    pause: Callable[[float], None],
    *,
    claim: bool = False,
    attempts: int = ATTEMPTS,
) -> str:
    """Call ``commit``, which adds the record to the table, until the table has it; returns the table's version.

    ``claim``: the record is there when the guard has its epoch and its writer, for it has no batch of its own.
    ``attempts`` is how often it is tried.

    Raises:
        Unavailable: it could not be added; the same record may be tried again.
        OutcomeUnknown: it may have been added; the next attempt finds out.
        Rejected: the table does not take it, and no other attempt changes that.
    """
    what = f"batch {record.batch} of {record.owner}"
    for attempt in range(1, attempts + 1):
        try:
            commit()
            return table.version()
        except Exception as error:  # noqa: BLE001 (of any kind: the table knows whether the batch is there)
            problem = error
        try:
            done = _landed(table, record, claim=claim)
        except Exception as error:  # noqa: BLE001 (not to know is the answer)
            raise OutcomeUnknown(
                f"{what}: the commit failed ({problem}) and the table cannot be asked whether it landed ({error}); "
                "the next run finds out"
            ) from problem
        if done:
            _LOG.warning("%s: the commit was answered with an error and is there: %s", what, problem)
            return table.version()
        if isinstance(problem, Rejected | Moved):
            raise problem
        _LOG.warning("%s: commit attempt %d failed: %s", what, attempt, problem)
        if attempt == attempts:
            raise Unavailable(f"{what} could not be committed: {problem}") from problem
        pause(min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S))
    raise AssertionError("the last attempt returns or raises")


def _landed(table: Table, record: CommitRecord, *, claim: bool) -> bool:
    if claim:
        found = table.guard(record.owner)
        return found is not None and (found.epoch, found.writer) == (record.epoch, record.writer)
    done = table.committed(record.owner, record.query)
    return done is not None and done >= record.batch
