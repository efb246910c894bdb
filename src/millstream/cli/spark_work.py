"""A command that works with Spark: its errors become sentences, and signals end it in order.

What the virtual machine writes to stderr goes to ``spark.log`` in the pipeline's state directory, so that a terminal
shows the pipeline and not its engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.output import remark
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.pipeline.document import Loaded


@contextlib.contextmanager
def plain_errors(loaded: Loaded | None = None) -> Generator[None]:
    """Turn errors into sentences; those in a query name the line of the file."""
    from millstream.config.yaml_file import Problem
    from millstream.pipeline.missing import Missing

    try:
        yield
    except MillstreamError as error:
        path = getattr(error, "path", None)
        if loaded is not None and path is not None:
            problem = Problem(path, error.message, line=getattr(error, "line", 0), column=getattr(error, "column", 0))
            failure = CommandFailed if isinstance(error, Missing) else WrongUsage
            raise failure(loaded.document.complain(problem)) from error
        raise CommandFailed(error.message) from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise CommandFailed(_said_by_spark(str(error)) or f"Spark failed: {type(error).__name__}") from error


def _said_by_spark(text: str) -> str:
    """The sentence in an error of Spark's: ours, if it came from one of our workers, else the first that says why."""
    ours = re.findall(r"millstream\.errors\.\w+: (.+)", text)
    if ours:
        return ours[-1].strip()
    lines = [line.strip() for line in text.splitlines()]
    reasons = [line for line in lines if line and not line.startswith("An error occurred while calling ")]
    return f"Spark failed: {re.sub(r'^: ([a-z]+[.])+', '', reasons[0])}" if reasons else ""


@contextlib.contextmanager
def quiet_engine(directory: str) -> Generator[None]:
    """Let this process's stderr and that of the virtual machine go to ``spark.log``; ours still goes to the
    terminal.
    """
    os.makedirs(directory, exist_ok=True)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # PySpark's copy of an error that is shown anyway
    kept, ours = os.dup(2), sys.stderr
    with open(os.path.join(directory, "spark.log"), "ab") as log, os.fdopen(os.dup(2), "w", buffering=1) as terminal:
        os.dup2(log.fileno(), 2)
        sys.stderr = terminal
        try:
            yield
        finally:
            sys.stderr.flush()
            sys.stderr = ours
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def signals_to(stop_run: Any) -> Generator[None]:
    """SIGTERM and the first SIGINT end the run in order; a second SIGINT ends it at once."""

    def on_signal(number: int, _: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        remark(
            "stopping after the batches at work" + ("; Ctrl-C again ends at once" if number == signal.SIGINT else "")
        )
        stop_run()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
