"""Names that ``millstream pipeline serve``, the broker's HTTP port and the command line share."""

from typing import Final

PIPELINES: Final = "__pipelines"
"""The compacted topic with the status of each served table, by topic."""

RUNNER_GROUP: Final = "__pipeline."
"""Before a topic's name: the consumer group whose one working member runs the topic's pipeline."""
