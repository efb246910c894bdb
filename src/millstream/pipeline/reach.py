"""What a pipeline names and others keep: brokers, topics, subjects. Asked for before Spark takes its seconds to
start.

``require_topics`` asks once for all topics of a declaration. What is missing is a ``Missing``: one sentence with the
remedy, and the place of the value that names it. Nothing is created and nothing is held: a topic that is deleted later
is noticed by the query that reads or writes it.
"""

import re
from collections.abc import Callable
from typing import Final

from millstream.client.cluster import TOPIC_RESOURCE
from millstream.errors import Unavailable
from millstream.model.error_code import ErrorCode
from millstream.pipeline.checks import kind_of, topics_of
from millstream.pipeline.missing import Missing
from millstream.pipeline.model import Pipeline
from millstream.pipeline.start import open_logs
from millstream.spark.topic_error import CREATE_IT, topic_error

PATIENCE_S: Final = 5.0
"""After this time a person who waits for a plan learns that no broker answers."""

RUN_PATIENCE_S: Final = 30.0
"""A pipeline that is started together with its broker waits this long for it."""
_SOON_S: Final = 2.0
"""After this time a run says what it waits for."""

_POLICY: Final = "cleanup.policy"
_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")


class NoBroker(Unavailable):
    """No broker of the declaration answers."""

    def __init__(self, brokers: str, reason: str) -> None:
        super().__init__(
            f"no broker answers at {brokers} ({reason}); start the broker, or name another in brokers: or by "
            "--bootstrap",
            ErrorCode.NETWORK_EXCEPTION,
        )


def require_topics(
    pipeline: Pipeline, *, source: bool = True, sinks: bool = True, patience_s: float = PATIENCE_S
) -> None:
    """Refuse a pipeline whose topics are not there: those that it reads, and those that it writes to.

    Args:
        pipeline: the checked declaration.
        source: whether the source's topics are looked for; those of ``tables`` always are.
        sinks: whether those of topic sinks and of dead letters are.
        patience_s: how long a broker may take to answer, retries included.

    Raises:
        Missing: a topic does not exist; ``path`` names the value that says it.
        NoBroker: no broker answers.
        MillstreamError: the brokers refuse the question.
    """
    wanted: dict[str, tuple[str | int, ...]] = {}
    if source:
        wanted |= dict.fromkeys(topics_of(pipeline.source), ("source", "topic"))
    for name, table in pipeline.tables.items():
        wanted.setdefault(table.topic, ("tables", name, "topic"))
    topic_sinks = [(index, sink) for index, sink in enumerate(pipeline.sinks) if sinks and kind_of(sink) == "topic"]
    for index, sink in topic_sinks:
        wanted.setdefault(str(sink.topic), ("sinks", index, "topic"))
    if topic_sinks and pipeline.errors.topic is not None:
        wanted.setdefault(pipeline.errors.topic, ("errors", "topic"))
    if not wanted:
        return
    found = _error_codes(pipeline, list(wanted), patience_s)
    for name, path in wanted.items():
        if found[name] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise Missing(f"topic {name} {CREATE_IT.format(name)}", path, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if found[name]:
            raise topic_error(name, found[name])


def await_topics(pipeline: Pipeline, say: Callable[[str], None]) -> None:
    """``require_topics`` of a run, which waits for a broker. ``say`` gets the news soon that none answers."""
    try:
        require_topics(pipeline, patience_s=_SOON_S)
    except NoBroker as error:
        say(f"{error.message}. Waiting {RUN_PATIENCE_S:.0f} s for one")
        require_topics(pipeline, patience_s=RUN_PATIENCE_S)


def is_compacted(pipeline: Pipeline, topic: str) -> bool:
    """Whether a topic has one present value for each key (``cleanup.policy``).

    Raises:
        MillstreamError: the brokers do not say it.
    """
    logs = open_logs(pipeline)
    try:
        settings = logs.cluster.describe_configs(TOPIC_RESOURCE, topic, [_POLICY])
    finally:
        logs.close()
    return "compact" in (settings.get(_POLICY) or "")


def _error_codes(pipeline: Pipeline, names: list[str], patience_s: float) -> dict[str, int]:
    logs = open_logs(pipeline)
    logs.cluster.timeout_s = min(patience_s, logs.cluster.timeout_s)
    try:
        topics = logs.cluster.metadata(names).topics
    except Unavailable as error:
        if error.code is not ErrorCode.NETWORK_EXCEPTION:
            raise
        raise NoBroker(pipeline.brokers, _ERRNO.sub("", error.message.rpartition(": ")[2])) from error
    finally:
        logs.close()
    return {name: topics[name].error_code for name in names}
