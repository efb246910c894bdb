"""What the members of a consumer group subscribe to: topics, and regular expressions with what they match."""

from typing import Final

import msgspec

from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.wire.messages.consumer_group_storage import ConsumerGroupRegularExpressionValue

NEVER_MS: Final = -1


class Resolved(msgspec.Struct, frozen=True):
    """Topics that a regular expression matches, at a revision of the metadata and a time (wall clock, ms)."""

    topics: frozenset[str]
    revision: int
    at_ms: int

    def value(self) -> ConsumerGroupRegularExpressionValue:
        """As a record."""
        return ConsumerGroupRegularExpressionValue(sorted(self.topics), self.revision, self.at_ms)


class Subscriptions:
    """The subscriptions of one group. An unresolved regular expression matches nothing."""

    __slots__ = ("expressions", "is_resolving", "name_counts", "regex_counts")

    def __init__(self) -> None:
        self.name_counts: dict[str, int] = {}
        """Topic → number of members that subscribe to it by name."""
        self.regex_counts: dict[str, int] = {}
        """Regular expression → number of members that subscribe by it."""
        self.expressions: dict[str, Resolved] = {}
        self.is_resolving = False
        """Whether the group's regular expressions are being resolved."""

    def topics(self) -> set[str]:
        """Every topic that a member subscribes to."""
        names = set(self.name_counts)
        for regex in self.regex_counts:
            resolved = self.expressions.get(regex)
            if resolved is not None:
                names |= resolved.topics
        return names

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that one member subscribes to."""
        resolved = self.expressions.get(member.topic_regex) if member.topic_regex else None
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def include(self, topic: str) -> bool:
        """Whether a member subscribes to ``topic``."""
        return topic in self.name_counts or any(
            topic in self.expressions[regex].topics for regex in self.regex_counts if regex in self.expressions
        )

    @property
    def resolved_ms(self) -> int:
        """Time at which regular expressions were last resolved (wall clock, ms); -1 for never."""
        return max((resolved.at_ms for resolved in self.expressions.values()), default=NEVER_MS)

    def add(self, member: ConsumerMember, count: int) -> None:
        """A member comes (``count`` 1) or goes (-1)."""
        for name in member.topic_names:
            add(self.name_counts, name, count)
        if member.topic_regex:
            add(self.regex_counts, member.topic_regex, count)


def add(counts: dict[str, int], name: str, count: int) -> None:
    """Count ``name``. What is not in ``counts`` counts 0."""
    total = counts.get(name, 0) + count
    if total:
        counts[name] = total
    else:
        counts.pop(name, None)
