"""What a broker holds, as its HTTP port shows it: topics with their counters, groups with their lag.

Both lists are bounded and in order of their names, so that the same ones are shown each time; the totals say how many
there are. Counters begin at the start of the broker.
"""

import msgspec


class TopicView(msgspec.Struct, frozen=True):
    """One topic, summed over its partitions."""

    name: str
    partitions: int
    records: int
    """Between the log start offsets and the high watermarks; compaction leaves fewer."""
    size_bytes: int
    """Of the record batches that are stored."""
    received_records: int
    received_bytes: int
    fetched_bytes: int


class GroupView(msgspec.Struct, frozen=True):
    """One group. ``lag`` has the records after the committed offsets, by topic; a share group has none here."""

    name: str
    state: str
    members: int
    lag: dict[str, int]
    type: str = "classic"


class Facts(msgspec.Struct, frozen=True):
    """The broker itself."""

    version: str
    node_id: int
    cluster_id: str
    bootstrap: str
    uptime_s: float
    accepts_writes: bool
    """False while the disk is full."""
    console: bool = False
    """Whether the console is served under ``/console``."""


class Overview(msgspec.Struct, frozen=True):
    """Topics and groups as of one moment, up to a limit each."""

    topics: list[TopicView]
    topics_total: int
    groups: list[GroupView]
    groups_total: int
