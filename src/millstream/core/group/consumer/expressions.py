r"""Subscriptions by regular expression: RE2's syntax, matched against whole topic names.

An expression is matched outside of any request, because there may be many topics: ``Outputs.resolve`` asks for it, and
``ExpressionsResolved`` brings the result. Until then it matches nothing. It is matched again when topics were created,
or after ``group.consumer.regex.refresh.interval.ms``, but at most every ten seconds; both as in Kafka. All expressions
of a group are matched together, so that one result increases the group epoch once.

RE2 matches in time linear in the name for every expression: no client can stall the broker with one.
"""

from typing import Final, NamedTuple

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.target import next_epoch
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.core.group.consumer_state.subscriptions import NEVER_MS, Resolved, Subscriptions
from millstream.core.group.outputs import ConsumerHeartbeat, ExpressionsResolved, Join, Resolve
from millstream.core.group.regex import check_expression
from millstream.core.group.step import Step
from millstream.wire.messages.consumer_group_storage import ConsumerGroupRegularExpressionKey

REFRESH_MIN_MS: Final = 10_000


class Expression(NamedTuple):
    """What a heartbeat says about its member's expression."""

    changed: bool
    bumps: bool
    """Whether the group epoch must increase for it."""
    to_resolve: tuple[str, ...]
    """Expressions of the group to resolve once the change is written."""


def follow_expression(
    step: Step, change: GroupChange[ConsumerGroup], before: ConsumerMember, member: ConsumerMember
) -> Expression:
    """Store the member's expression. Called after ``member`` was put into the group. Rejected if it is invalid."""
    group = change.content
    expressions, counts = group.subscriptions.expressions, group.subscriptions.regex_counts
    old, new = before.topic_regex, member.topic_regex
    bumps = needed = False
    if old != new:
        if old and not counts.get(old) and old in expressions:
            change.put(ConsumerGroupRegularExpressionKey(group.group_id, old), None)
        if new and counts.get(new) == 1:
            check_expression(new)
            needed = True
        # A resolved expression, or none at all, takes effect now; an unknown one when it is resolved.
        bumps = new in expressions if new else True
    return Expression(old != new, bumps, _to_resolve(step, group.subscriptions, needed=needed))


def _to_resolve(step: Step, subscriptions: Subscriptions, *, needed: bool) -> tuple[str, ...]:
    """All expressions if they must be resolved now, else none."""
    counts, expressions = subscriptions.regex_counts, subscriptions.expressions
    if not counts or subscriptions.is_resolving:
        return ()
    last_ms = subscriptions.resolved_ms
    if last_ms != NEVER_MS and last_ms <= step.wall_ms <= last_ms + REFRESH_MIN_MS:
        return ()
    revision = min((resolved.revision for resolved in expressions.values()), default=-1)
    is_due = (
        needed
        or expressions.keys() != counts.keys()
        or revision < step.topics.created_revision
        or step.wall_ms > last_ms + step.settings.consumer.regex_refresh_interval_ms
    )
    return tuple(counts) if is_due else ()


def begin_resolving(
    step: Step, group: ConsumerGroup, regexes: tuple[str, ...], client: ConsumerHeartbeat | Join
) -> None:
    """Request the topics of these expressions, if any, as ``client`` sees them."""
    if regexes:
        group.subscriptions.is_resolving = True
        step.out.resolve.append(Resolve(group.group_id, regexes, client.principal, client.client_host))


def drop_unused(change: GroupChange[ConsumerGroup]) -> None:
    """Drop expressions without subscribers."""
    group = change.content
    counts = group.subscriptions.regex_counts
    for regex in [regex for regex in group.subscriptions.expressions if regex not in counts]:
        change.put(ConsumerGroupRegularExpressionKey(group.group_id, regex), None)


def take_resolved(step: Step, change: GroupChange[ConsumerGroup], found: ExpressionsResolved) -> None:
    """Store the topics of a group's expressions."""
    group, subscriptions = change.content, change.content.subscriptions
    subscriptions.is_resolving = False
    bump = False
    for regex, names in found.topics.items():
        if regex not in subscriptions.regex_counts:
            continue
        before = subscriptions.expressions.get(regex)
        resolved = Resolved(frozenset(names), found.revision, step.wall_ms)
        bump = bump or resolved.topics != (frozenset() if before is None else before.topics)
        change.put(ConsumerGroupRegularExpressionKey(group.group_id, regex), resolved.value())
    metadata = group.next_metadata(step.topics)
    if bump or metadata.metadata_hash != group.metadata.metadata_hash:
        next_epoch(step, change, metadata)
