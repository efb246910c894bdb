"""Names that scripts outside the project import keep their place and their form."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

NAMES = {
    "millstream.client.connection": ["Connection"],
    "millstream.model.error_code": ["ErrorCode"],
    "millstream.pipeline.backfill": ["prepared_backfill"],
    "millstream.pipeline.document": ["InvalidPipeline", "load"],
    "millstream.pipeline.maintain": ["maintain"],
    "millstream.pipeline.model": ["Pipeline", "Trigger"],
    "millstream.pipeline.runner": ["prepared", "run"],
    "millstream.registry.formats.protobuf_format": ["ROOT", "parse_protobuf", "pool_of"],
    "millstream.testing": ["broker", "cluster"],
    "millstream.testing.clusters": ["cluster"],
    "millstream.testing.process": ["Broker"],
    "millstream.wire.records": ["build_batch", "iter_batches", "iter_records"],
}


@pytest.mark.parametrize(("module", "names"), NAMES.items())
def test_scripts_find_what_they_import(module: str, names: list[str]) -> None:
    """They may move behind these names, and not away from them."""
    missing = [name for name in names if not hasattr(import_module(module), name)]
    assert not missing


@pytest.mark.parametrize(
    ("module", "name", "positional", "keywords"),
    [
        ("millstream.client.connection", "Connection", ["host", "port"], ["timeout_s"]),
        ("millstream.client.connection", "Connection.call", ["self", "request", "answer", "version"], []),
        ("millstream.pipeline.runner", "run", ["pipeline", "directory"], ["once"]),
        ("millstream.pipeline.runner", "prepared", ["pipeline", "directory"], []),
        ("millstream.pipeline.backfill", "prepared_backfill", ["pipeline", "directory"], ["start", "end"]),
    ],
)
def test_scripts_call_them_as_before(module: str, name: str, positional: list[str], keywords: list[str]) -> None:
    """The arguments that they give by place come first and in this order; those that they name exist."""
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(positional)] == positional
    assert set(keywords) <= set(parameters)
