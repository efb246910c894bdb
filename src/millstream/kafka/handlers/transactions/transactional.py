"""Error codes of the transaction handlers, by API version."""

from millstream.model.error_code import ErrorCode


def in_version(error: ErrorCode, knows_fenced: bool, knows_abortable: bool = True) -> ErrorCode:
    """The code for a client that may not know PRODUCER_FENCED, or TRANSACTION_ABORTABLE (KIP-890)."""
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error
