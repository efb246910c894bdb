"""The states of a transactional id, numbered and named as Apache Kafka stores and shows them."""

from enum import Enum
from typing import Final


class TransactionState(Enum):
    """One state. ``value`` is the number in the record, ``shown`` the name in responses."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        return _SHOWN[self]


_SHOWN: Final = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
BY_NAME: Final = {shown: state for state, shown in _SHOWN.items()}
"""State by the name in responses."""

PREPARING: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided; markers are being written."""

COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
