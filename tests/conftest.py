"""What all tests share."""

import warnings


def pytest_unconfigure() -> None:
    """The interpreter's last words about sockets would stand behind the summary, which is to be the last line."""
    warnings.simplefilter("ignore", ResourceWarning)
