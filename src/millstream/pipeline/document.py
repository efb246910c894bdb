"""A pipeline file: YAML whose every complaint names line and column (`config.yaml_file`).

``load`` makes a ``Pipeline`` of it and reports everything that is wrong at once, in the order of the file.
"""

import os

import msgspec

from millstream.config.yaml_file import Document, InvalidFile, complaints, converted, read_file
from millstream.pipeline.checks import problems_of
from millstream.pipeline.model import Pipeline


class InvalidPipeline(InvalidFile):
    """A pipeline file that cannot be carried out as it is written; ``problems`` holds one sentence for each fault."""


class Loaded(msgspec.Struct, frozen=True):
    """A pipeline and the document that it was read from. ``directory`` is what relative paths are relative to."""

    pipeline: Pipeline
    document: Document
    directory: str


def load(path: str | os.PathLike[str]) -> Loaded:
    """Read and check a pipeline file.

    Raises:
        InvalidPipeline: something is wrong with it; the message has a line for each problem.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    try:
        document = read_file(name)
        pipeline = converted(document, Pipeline)
    except InvalidFile as error:
        raise InvalidPipeline(error.problems) from None
    found = problems_of(pipeline)
    if found:
        raise InvalidPipeline(complaints(document, found))
    return Loaded(pipeline, document, os.path.dirname(os.path.abspath(name)))
