r"""Subscriptions by regular expression: RE2's syntax, matched against whole topic names.

An expression is matched outside of any request, because there may be many topics: ``Outputs.resolve`` asks for it, and
``ExpressionsResolved`` brings the result. Until then it matches nothing. It is matched again when topics were created,
or after ``group.consumer.regex.refresh.interval.ms``, but at most every ten seconds; both as in Kafka. All expressions
of a group are matched together, so that one result increases the group epoch once.

RE2 matches in time linear in the name for every expression: no client can stall the broker with one.
"""

from typing import Final

from millstream.core.group.consumer.change import Change
from millstream.core.group.consumer.target import next_epoch
from millstream.core.group.consumer_state.group import NEVER_MS, ConsumerGroup, Resolved, resolved_value
from millstream.core.group.consumer_state.member import ConsumerMember
from millstream.core.group.consumer_state.topics import metadata_hash
from millstream.core.group.outputs import ConsumerHeartbeat, ExpressionsResolved, Join, Resolve
from millstream.core.group.regex import check_expression
from millstream.core.group.step import Step
from millstream.wire.messages.consumer_group_storage import ConsumerGroupRegularExpressionKey

REFRESH_MIN_MS: Final = 10_000


def follow_expression(step: Step, change: Change, before: ConsumerMember, member: ConsumerMember) -> tuple[bool, bool]:
    """Store the member's expression. Returns whether it changed, and whether the group epoch must increase for it.

    Called after ``member`` was put into the group. Rejected if the expression is invalid.
    """
    group = change.consumer
    old, new = before.topic_regex, member.topic_regex
    changed = bump = needed = False
    if old != new:
        changed = True
        if old and not group.regex_counts.get(old) and old in group.expressions:
            change.put(ConsumerGroupRegularExpressionKey(group.group_id, old), None)
        if new and group.regex_counts.get(new) == 1:
            check_expression(new)
            needed = True
        # A resolved expression, or none at all, takes effect now; an unknown one when it is resolved.
        bump = new in group.expressions if new else True
    _maybe_resolve(step, change, needed=needed)
    return changed, bump


def _maybe_resolve(step: Step, change: Change, *, needed: bool) -> None:
    group = change.consumer
    if not group.regex_counts or group.is_resolving:
        return
    last_ms = group.last_resolved_ms
    if last_ms != NEVER_MS and last_ms <= step.wall_ms <= last_ms + REFRESH_MIN_MS:
        return
    revision = min((resolved.revision for resolved in group.expressions.values()), default=-1)
    if (
        needed
        or group.expressions.keys() != group.regex_counts.keys()
        or revision < step.topics.created_revision
        or step.wall_ms > last_ms + step.settings.consumer.regex_refresh_interval_ms
    ):
        change.regexes = tuple(group.regex_counts)


def begin_resolving(
    step: Step, group: ConsumerGroup, regexes: tuple[str, ...], client: ConsumerHeartbeat | Join
) -> None:
    """Request the topics of these expressions, as ``client`` sees them."""
    group.is_resolving = True
    step.out.resolve.append(Resolve(group.group_id, regexes, client.principal, client.client_host))


def drop_unused(change: Change) -> None:
    """Drop expressions without subscribers."""
    group = change.consumer
    for regex in [regex for regex in group.expressions if regex not in group.regex_counts]:
        change.put(ConsumerGroupRegularExpressionKey(group.group_id, regex), None)


def take_resolved(step: Step, change: Change, found: ExpressionsResolved) -> None:
    """Store the topics of a group's expressions."""
    group = change.consumer
    group.is_resolving = False
    bump = False
    for regex, names in found.topics.items():
        if regex not in group.regex_counts:
            continue
        before = group.expressions.get(regex)
        resolved = Resolved(frozenset(names), found.revision, step.wall_ms)
        bump = bump or resolved.topics != (frozenset() if before is None else before.topics)
        change.put(ConsumerGroupRegularExpressionKey(group.group_id, regex), resolved_value(resolved))
    now = metadata_hash(group.subscribed_names(), step.topics.by_name)
    if bump or now != group.metadata_hash:
        next_epoch(step, change, now)
