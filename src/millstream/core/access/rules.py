"""The decision: may this principal, from this host, do this to that resource?

In order, as in Kafka: a matching DENY refuses; else a matching ALLOW permits; else, where no entry at all is about the
resource, ``allow.everyone.if.no.acl.found`` decides; else it is refused. Superusers are asked about elsewhere. An entry
matches by its resource (the literal name, the literal ``*``, a prefix of the name), its principal (itself or
``User:*``), its host (itself or ``*``) and its operation (itself, ``ALL``, or for ALLOW one that implies it).

Cost: entries are indexed by type and name, and prefixes by their length, so a question looks at one dictionary entry
for each length of prefix that exists. Entries are added and removed one by one; nothing is rebuilt.
"""

from collections.abc import Iterator

from millstream.core.access.entry import EVERYONE, IMPLIED_BY, WILDCARD, AclEntry
from millstream.model.access import Operation, PatternType, Permission, ResourceType

_Entries = dict[AclEntry, None]


class Rules:
    """All entries. Invariant: no empty dictionaries, and ``_lengths`` counts the prefixes of each type and length."""

    __slots__ = ("_lengths", "_literals", "_prefixes", "entries")

    def __init__(self) -> None:
        self.entries: dict[AclEntry, None] = {}
        """In the order in which they were added."""
        self._literals: dict[tuple[int, str], _Entries] = {}
        self._prefixes: dict[tuple[int, str], _Entries] = {}
        self._lengths: dict[int, dict[int, int]] = {}

    def copy(self) -> "Rules":
        other = Rules()
        for entry in self.entries:
            other.add(entry)
        return other

    def add(self, entry: AclEntry) -> None:
        """Add an entry. One that is there already changes nothing."""
        if entry in self.entries:
            return
        self.entries[entry] = None
        index = self._prefixes if entry.pattern_type == PatternType.PREFIXED else self._literals
        key = (entry.resource_type, entry.name)
        if index is self._prefixes and key not in index:
            lengths = self._lengths.setdefault(entry.resource_type, {})
            lengths[len(entry.name)] = lengths.get(len(entry.name), 0) + 1
        index.setdefault(key, {})[entry] = None

    def remove(self, entry: AclEntry) -> None:
        """Remove an entry that is there."""
        del self.entries[entry]
        index = self._prefixes if entry.pattern_type == PatternType.PREFIXED else self._literals
        key = (entry.resource_type, entry.name)
        del index[key][entry]
        if index[key]:
            return
        del index[key]
        if index is self._prefixes:
            lengths = self._lengths[entry.resource_type]
            lengths[len(entry.name)] -= 1
            if not lengths[len(entry.name)]:
                del lengths[len(entry.name)]

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool | None:
        """Whether it is permitted; None if no entry is about the resource."""
        implied_by = IMPLIED_BY.get(operation, frozenset())
        about = allowed = False
        for entries in self._about(resource_type, name):
            about = True
            for entry in entries:
                if entry.principal not in (principal, EVERYONE) or entry.host not in (host, WILDCARD):
                    continue
                if entry.operation in (operation, Operation.ALL):
                    if entry.permission == Permission.DENY:
                        return False
                    allowed = True
                elif entry.operation in implied_by and entry.permission == Permission.ALLOW:
                    allowed = True
        return allowed if about else None

    def allows_some(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether it is permitted for at least one name that a resource may have, which need not exist. An ALLOW counts
        unless a DENY covers all that it covers. Implied operations do not count (Kafka's authorizeByResourceType).
        """
        denied: set[tuple[int, str]] = set()
        allowed: list[AclEntry] = []
        for entry in self.entries:
            if (
                entry.resource_type != resource_type
                or entry.principal not in (principal, EVERYONE)
                or entry.host not in (host, WILDCARD)
                or entry.operation not in (operation, Operation.ALL)
            ):
                continue
            if entry.permission == Permission.ALLOW:
                allowed.append(entry)
            else:
                denied.add((entry.pattern_type, entry.name))
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_covered(entry, denied) for entry in allowed)

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[_Entries]:
        for literal in (name, WILDCARD):
            found = self._literals.get((resource_type, literal))
            if found is not None:
                yield found
            if name == WILDCARD:
                break
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                found = self._prefixes.get((resource_type, name[:length]))
                if found is not None:
                    yield found


def _is_covered(entry: AclEntry, denied: set[tuple[int, str]]) -> bool:
    """Whether a DENY covers every name that the entry allows."""
    if entry.pattern_type == PatternType.LITERAL:
        if entry.name == WILDCARD:
            return False
        if (PatternType.LITERAL, entry.name) in denied:
            return True
    return any((PatternType.PREFIXED, entry.name[:end]) in denied for end in range(1, len(entry.name) + 1))
