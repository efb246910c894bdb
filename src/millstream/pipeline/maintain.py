"""Maintenance of a pipeline's Delta and Iceberg tables while it does not run: small files merged, old versions expired.

Each merge and each expiry is one commit of the table, so readers see the same rows throughout, and a crash leaves whole
steps: the next call does the rest. The pipeline's lock is held until then. A table that the pipeline has not written to
is left alone, and so is everything that no commit of a table has removed.
"""

import os
from collections.abc import Callable

import msgspec

from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.pipeline.checks import kind_of, sink_name
from millstream.pipeline.locations import state_directory
from millstream.pipeline.model import Pipeline
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables.open_table import DEAD_LETTERS_SUFFIX, DELETES_SUFFIX, open_table, shown_target


class Maintained(msgspec.Struct, frozen=True):
    """What was done to one table."""

    table: str
    merged: int
    """Files fewer, by merging."""

    expired: int
    """Files of a Delta table that are removed; of an Iceberg table, snapshots."""

    stopped: bool = False
    """Whether it was left before its end."""


def maintain(
    pipeline: Pipeline,
    directory: str,
    *,
    keep_days: int,
    watch: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Maintained]:
    """Maintain every Delta and Iceberg table of a pipeline, and the tables of their dead letters.

    Args:
        pipeline: the checked declaration.
        directory: what relative paths in it are relative to.
        keep_days: versions that are younger stay, for readers that have started and for time travel.
        watch: gets the name of each table first.
        stopped: is asked between two steps.

    Raises:
        Rejected: the pipeline has no such table.
        Unavailable: the pipeline runs, or a table's library failed; what was done stays.
    """
    directory = os.path.abspath(directory)
    sinks = [sink for sink in pipeline.sinks if kind_of(sink) in ("delta", "iceberg")]
    if not sinks:
        raise Rejected(f"pipeline {pipeline.pipeline} has no Delta or Iceberg table: there is nothing to maintain")
    done: list[Maintained] = []
    with PipelineState(state_directory(pipeline, directory)).running():
        for sink in sinks:
            owner = f"{pipeline.pipeline}.{sink_name(sink)}"
            for suffix in ("", DEAD_LETTERS_SUFFIX, *([DELETES_SUFFIX] if sink.mode == "upsert" else [])):
                shown = shown_target(sink, directory) + suffix
                watch(shown)
                try:
                    key = open_table(sink, directory).key if suffix == DELETES_SUFFIX else ()
                    table = open_table(sink, directory, suffix=suffix, key=key)
                    if table.last(owner) is None:
                        continue
                    merged = expired = 0
                    while not stopped() and (fewer := table.compact()) > 0:
                        merged += fewer
                    if not stopped():
                        expired = table.expire(keep_days)
                except MillstreamError:
                    raise
                except Exception as error:  # any error of the table's library
                    raise Unavailable(f"{shown}: {error}; the same command continues from here") from error
                done.append(Maintained(shown, merged, expired, stopped()))
                if stopped():
                    return done
    return done
