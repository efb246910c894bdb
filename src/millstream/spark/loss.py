"""What to do when records that should be read are gone: fail with a sentence, or say so and go on.

Retention overtook the query, a topic was deleted or created again, a log was cut. The query decides with the
connector's option ``failOnDataLoss``; nothing is ever skipped without a line in the log.
"""

import logging
from typing import Final

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

_LOG: Final = logging.getLogger("millstream.spark")

_REMEDY: Final = (
    "To go on with what there is, set failOnDataLoss=false; to keep more, raise the topic's retention. "
    "A stream that should begin anew needs a new checkpoint directory."
)


class DataLost(Rejected):
    """Records that a query should have read do not exist any more."""

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE


class LossPolicy:
    """What ``failOnDataLoss`` says."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail

    def report(self, what: str) -> None:
        """Tell of a loss.

        Raises:
            DataLost: the query wants to fail.
        """
        if self._fail:
            raise DataLost(f"{what}. {_REMEDY}")
        _LOG.warning("%s; going on, as failOnDataLoss=false says", what)
