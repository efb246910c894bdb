"""The file and the state directory of a pipeline, as the commands read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.pipeline.document import Loaded
    from millstream.pipeline.state import PipelineState


def load_file(file: str, bootstrap: str | None = None) -> Loaded:
    """The pipeline of a file, with other brokers if they are given; what is wrong with it becomes a usage error."""
    import msgspec

    from millstream.pipeline.document import InvalidPipeline, load

    try:
        loaded = load(file)
        if bootstrap is None:
            return loaded
        pipeline = msgspec.structs.replace(loaded.pipeline, brokers=bootstrap)
        return msgspec.structs.replace(loaded, pipeline=pipeline)
    except InvalidPipeline as error:
        raise WrongUsage(error.message) from None
    except MillstreamError as error:
        raise CommandFailed(error.message) from None


def state_of(loaded: Loaded) -> PipelineState:
    """The state directory of a pipeline."""
    from millstream.pipeline.locations import state_directory
    from millstream.pipeline.state import PipelineState

    return PipelineState(state_directory(loaded.pipeline, loaded.directory))
