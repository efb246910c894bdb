"""Declared pipelines: topics in, tables and topics out, one file, one command.

::

    file ──document──► model ──checks──► Pipeline ──run──► Spark queries ──► Delta, Iceberg, Parquet, topics

A pipeline is a YAML file (``millstream pipeline run FILE``) or the same thing as a Python value::

    from millstream.pipeline import Pipeline, Sink, Source, run

    source = Source(topic="orders", format="string")
    run(Pipeline(pipeline="orders", source=source, sinks=[Sink(delta="tables/orders")]))

What a pipeline promises: each record of the source is in each table once, either as a row or as a dead letter, however
often the driver, a task or a commit fails. Table sinks keep the proof in the table itself, topic sinks in transactions.
Nothing of the broker is imported here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.pipeline.document import load
    from millstream.pipeline.model import Errors, Pipeline, Sink, Source, Transform, Trigger
    from millstream.pipeline.runner import run

__all__ = ["Errors", "Pipeline", "Sink", "Source", "Transform", "Trigger", "load", "run"]


def __getattr__(name: str) -> Any:
    """Import on first use: workers import parts of this package and need neither YAML nor a Spark session."""
    import importlib

    if name in __all__:
        home = {"load": "document", "run": "runner"}.get(name, "model")
        try:
            return getattr(importlib.import_module(f"millstream.pipeline.{home}"), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package == "millstream":
                raise
            from millstream.errors import how_to_install

            sentence = f"pipelines need {package}, which is not installed: {how_to_install('pipeline')}"
            raise ModuleNotFoundError(sentence, name=error.name) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
