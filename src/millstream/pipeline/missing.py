"""Something that a declaration names and that is not there."""

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode


class Missing(Rejected):
    """A topic or a subject does not exist. ``path`` leads to the value of the declaration that names it."""

    def __init__(self, message: str, path: tuple[str | int, ...], code: ErrorCode | None = None) -> None:
        super().__init__(message, code)
        self.path = path
