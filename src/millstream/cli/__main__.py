"""Entry point: choose the command, and turn every ending into an exit code.

``start`` and ``--version`` are chosen before typer and rich are imported, because a broker should not pay a tenth of a
second for tables that it never prints.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from millstream.cli.failure import CommandFailed, OutputLost, ReaderLeft
from millstream.cli.output import emit_now
from millstream.config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _guarded(lambda: _dispatch(words))


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["start"]:
        from millstream.cli.start import start

        return start(words[1:])
    if words == ["--version"]:
        from millstream import __version__

        sys.stdout.write(f"millstream {__version__}\n")
        return EXIT_OK
    from millstream.cli.application import run_application

    return run_application(words)


def _guarded(command: Callable[[], int]) -> int:
    """The command's exit code; whatever it raises becomes one sentence on stderr."""
    try:
        code = command()
        emit_now()
        return code
    except OutputLost as failure:
        _give_up_output()
        return _complain(str(failure), failure.exit_code)
    except CommandFailed as failure:
        return _complain(str(failure), failure.exit_code)
    except ConfigError as error:
        return _complain(str(error), EXIT_USAGE)
    except (ReaderLeft, BrokenPipeError):
        _give_up_output()  # its reader has seen enough
        return EXIT_OK
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return _complain(f"{where}{(error.strerror or str(error)).lower()}", EXIT_FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else EXIT_USAGE
    except Exception as error:  # the last line of defence against a traceback at the terminal
        if os.environ.get("MILLSTREAM_TRACEBACK"):
            raise
        return _complain(
            f"unexpected {type(error).__name__}: {error}; this is a fault in millstream, "
            "set MILLSTREAM_TRACEBACK=1 to see where",
            EXIT_FAILED,
        )


def _give_up_output() -> None:
    """Give the interpreter's last flush somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str, exit_code: int) -> int:
    sys.stderr.write(f"error: {sentence}\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
