"""Entry point: chooses the command, and maps every result to an exit code.

``start`` and ``--version`` are chosen before the other commands are imported, because a broker needs none of
their modules.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from millstream.cli.failure import CommandFailed, OutputLost, ReaderLeft, without_extra
from millstream.cli.interrupts import interruptible, take_interrupts
from millstream.cli.output import emit, emit_now, remark
from millstream.cli.streams import take_streams
from millstream.config.errors import ConfigError
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code."""
    take_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _guarded(lambda: _dispatch(words), _Complaints(as_json="--json" in words))


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["start"]:
        from millstream.cli.start import start

        return start(words[1:])
    if words == ["--version"]:
        from millstream import __version__

        emit(f"millstream {__version__}\n")
        return EXIT_OK
    from millstream.cli.application import run_application

    take_interrupts()
    return run_application(words)


class _Complaints:
    """The form of a failure: ``error: <sentence>`` on stderr, or with ``--json`` one line of JSON there."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def say(self, sentence: str, exit_code: int, code: str = "") -> int:
        """Report it; returns the exit code. ``code`` is the name of the Kafka error behind it, if there is one."""
        if self._as_json:
            import json

            document = {"error": sentence, "exit_code": exit_code} | ({"code": code} if code else {})
            remark(json.dumps(document, ensure_ascii=False))
        else:
            remark(f"error: {sentence}")
        return exit_code


def _guarded(command: Callable[[], int], complaints: _Complaints) -> int:
    """The command's exit code; an exception becomes one sentence on stderr."""
    try:
        with interruptible():
            code = command()
        emit_now()
        return code
    except OutputLost as failure:
        _give_up_output()
        return complaints.say(str(failure), failure.exit_code)
    except CommandFailed as failure:
        return complaints.say(str(failure), failure.exit_code, failure.code)
    except ConfigError as error:
        return complaints.say(str(error), EXIT_USAGE)
    except MillstreamError as error:
        return complaints.say(error.message, EXIT_FAILED, error.code.name)
    except (ReaderLeft, BrokenPipeError):
        _give_up_output()  # the reader has closed the pipe
        return EXIT_OK
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return complaints.say(f"{where}{(error.strerror or str(error)).lower()}", EXIT_FAILED)
    except KeyboardInterrupt:
        return complaints.say("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else EXIT_USAGE
    except Exception as error:  # the last line of defence against a traceback at the terminal
        if os.environ.get("MILLSTREAM_TRACEBACK"):
            raise
        if (sentence := without_extra(error)) is not None:
            return complaints.say(sentence, EXIT_FAILED)
        return complaints.say(
            f"unexpected {type(error).__name__}: {error}; this is a fault in millstream, "
            "set MILLSTREAM_TRACEBACK=1 to see where",
            EXIT_FAILED,
        )


def _give_up_output() -> None:
    """Give the interpreter's last flush somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
