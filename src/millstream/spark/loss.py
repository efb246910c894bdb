"""The reaction to records that were deleted before they were read: fail with a sentence, or log and continue.

Causes are retention that overtook the query, a topic that was deleted or created again, or a truncated log. The
connector's option ``failOnDataLoss`` decides; nothing is ever skipped without a log line.
"""

import logging
from typing import Final

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

_LOG: Final = logging.getLogger("millstream.spark")

_REMEDY: Final = (
    "To continue with what there is, set failOnDataLoss=false; to keep more, raise the topic's retention. "
    "A stream that should start again needs a new checkpoint directory."
)


class DataLost(Rejected):
    """Records that a query should have read no longer exist."""

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE


class LossPolicy:
    """The policy of ``failOnDataLoss``."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str) -> None:
        """Report a loss.

        Raises:
            DataLost: ``failOnDataLoss`` is set.
        """
        if self._fail:
            raise DataLost(f"{what}. {_REMEDY}")
        _LOG.warning("%s; continuing, because of failOnDataLoss=false", what)
