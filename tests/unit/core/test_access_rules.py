"""The decision about rights, against a naive one of sixty lines, and its index."""

import random

import pytest

from millstream.core.access.entry import AclEntry, AclFilter
from millstream.core.access.rules import Rules
from millstream.model.access import Operation, PatternType, Permission, ResourceType

NAMES = ("a", "ab", "abc", "b", "*", "ba", "")
PRINCIPALS = ("User:x", "User:y", "User:*")
HOSTS = ("1.1.1.1", "2.2.2.2", "*")
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = tuple(Operation)[1:]
POLICIES = 100_000


# The naive one: every entry is looked at, in the words of Kafka's documentation.


def is_about(entry, resource_type, name):
    if entry.resource_type != resource_type:
        return False
    if entry.pattern_type == PatternType.PREFIXED:
        return name.startswith(entry.name)
    return entry.name in (name, "*")


def concerns(entry, principal, host):
    return entry.principal in (principal, "User:*") and entry.host in (host, "*")


def allows_operation(entry, operation):
    implied = {
        Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
    }
    return entry.operation in (operation, Operation.ALL, *implied.get(operation, ()))


def naive(entries, principal, host, operation, resource_type, name):
    about = [entry for entry in entries if is_about(entry, resource_type, name)]
    if not about:
        return None
    mine = [entry for entry in about if concerns(entry, principal, host)]
    for entry in mine:
        if entry.permission == Permission.DENY and entry.operation in (operation, Operation.ALL):
            return False
    return any(entry.permission == Permission.ALLOW and allows_operation(entry, operation) for entry in mine)


def naive_some(entries, principal, host, operation, resource_type):
    """Whether some name is allowed: tried on names that the entries distinguish, and fresh ones below each prefix."""
    kept = [
        entry
        for entry in entries
        if entry.resource_type == resource_type
        and concerns(entry, principal, host)
        and entry.operation in (operation, Operation.ALL)
    ]
    literals = {entry.name for entry in kept if entry.pattern_type == PatternType.LITERAL and entry.name != "*"}
    prefixes = {entry.name for entry in kept if entry.pattern_type == PatternType.PREFIXED}
    for name in [*literals, *(prefix + "~" for prefix in prefixes), "~"]:
        matching = [entry for entry in kept if is_about(entry, resource_type, name)]
        if any(entry.permission == Permission.DENY for entry in matching):
            continue
        if any(entry.permission == Permission.ALLOW for entry in matching):
            return True
    return False


def some_entry(rng):
    return AclEntry(
        rng.choice(TYPES),
        rng.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        rng.choice(NAMES[:-1]),
        rng.choice(PRINCIPALS),
        rng.choice(HOSTS),
        rng.choice(OPERATIONS),
        rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
    )


def test_a_hundred_thousand_random_policies_are_decided_as_naively():
    rng = random.Random(20261127)
    rules = Rules()
    for number in range(POLICIES):
        if rules.entries and (len(rules.entries) > 8 or rng.random() < 0.4):
            rules.remove(rng.choice(list(rules.entries)))
        else:
            rules.add(some_entry(rng))
        question = (
            "User:x",
            "1.1.1.1",
            rng.choice(OPERATIONS),
            rng.choice(TYPES),
            rng.choice(NAMES[:4]) + rng.choice("ab"),
        )
        assert rules.decide(*question) == naive(rules.entries, *question), (number, list(rules.entries), question)
        if number % 10 == 0:
            wide = question[:4]
            if (PatternType.PREFIXED, "*") not in {(entry.pattern_type, entry.name) for entry in rules.entries}:
                assert rules.allows_some(*wide) == naive_some(rules.entries, *wide), (list(rules.entries), wide)


@pytest.mark.parametrize(
    ("allowed", "denied", "some"),
    [
        ([("L", "t")], [], True),
        ([("L", "t")], [("L", "t")], False),
        ([("L", "t")], [("P", "t")], False),
        ([("P", "t")], [("L", "t")], True),
        ([("P", "ta")], [("P", "t")], False),
        ([("P", "t")], [("P", "ta")], True),
        ([("L", "*")], [("L", "*")], False),
        ([("L", "*")], [("P", "a"), ("L", "b")], True),
        ([], [], False),
    ],
)
def test_some_topic_may_be_written_unless_a_deny_covers_all_of_it(allowed, denied, some):
    rules = Rules()
    kinds = {"L": PatternType.LITERAL, "P": PatternType.PREFIXED}
    for permission, patterns in ((Permission.ALLOW, allowed), (Permission.DENY, denied)):
        for kind, name in patterns:
            rules.add(AclEntry(ResourceType.TOPIC, kinds[kind], name, "User:x", "*", Operation.WRITE, permission))
    assert rules.allows_some("User:x", "1.1.1.1", Operation.WRITE, ResourceType.TOPIC) is some
    assert not rules.allows_some("User:y", "1.1.1.1", Operation.WRITE, ResourceType.TOPIC)


def test_deleting_one_of_two_entries_keeps_the_other():
    rules = Rules()
    one, other = (
        AclEntry(ResourceType.TOPIC, PatternType.PREFIXED, "t", f"User:{who}", "*", Operation.READ, Permission.ALLOW)
        for who in "xy"
    )
    rules.add(one)
    rules.add(other)
    rules.add(one)
    rules.remove(one)
    assert rules.decide("User:y", "h", Operation.READ, ResourceType.TOPIC, "t1")
    assert rules.decide("User:x", "h", Operation.READ, ResourceType.TOPIC, "t1") is False
    rules.remove(other)
    assert rules.decide("User:y", "h", Operation.READ, ResourceType.TOPIC, "t1") is None
    assert not rules.entries and not rules._lengths[ResourceType.TOPIC]


def test_a_filter_means_what_it_says():
    entry = AclEntry(ResourceType.TOPIC, PatternType.PREFIXED, "tr", "User:x", "*", Operation.READ, Permission.ALLOW)

    def means(**changes):
        wanted = {"resource_type": 1, "pattern_type": 1, "name": None, "principal": None, "host": None}
        return AclFilter(**{**wanted, "operation": 1, "permission": 1, **changes}).matches(entry)

    assert means() and means(name="tr") and means(pattern_type=PatternType.MATCH, name="trip")
    assert not means(name="trip") and not means(pattern_type=PatternType.LITERAL)
    assert not means(principal="User:y") and not means(host="h") and not means(operation=Operation.WRITE)
    assert not means(pattern_type=PatternType.MATCH, name="t") and not means(permission=Permission.DENY)
