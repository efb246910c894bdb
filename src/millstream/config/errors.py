"""The error of a wrong setting.

One sentence: which setting, which value, what was expected; a near match where the name is unknown. A Kafka client sees
it as INVALID_CONFIG, a person at the command line as the last line before exit code 2.
"""

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode


class ConfigError(Rejected):
    """A setting is unknown, has a value that it cannot have, or contradicts another one."""

    default_code = ErrorCode.INVALID_CONFIG

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem
