"""The error of a wrong setting.

One sentence: the setting, the value, what was expected, and the nearest name if the name is unknown. A Kafka client
sees INVALID_CONFIG, a person at the command line the last line before exit code 2.
"""

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode


class ConfigError(Rejected):
    """A setting is unknown, has an invalid value, or contradicts another setting."""

    default_code = ErrorCode.INVALID_CONFIG

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem
