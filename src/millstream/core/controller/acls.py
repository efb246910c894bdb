"""Decisions about access control entries: create and delete them.

Each entry, and each filter of a deletion, has a result of its own. An entry that is there already is created with
success and nothing changes, as in Kafka. Codes and words are Kafka's.
"""

from typing import Final

from millstream.core.access.entry import CLUSTER_NAME, OPERATIONS_OF, AclEntry
from millstream.core.controller.commands import AclsCreated, AclsDeleted, AnyCommand
from millstream.core.controller.requests import CreateAcls, DeleteAcls, Result
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.core.controller.users import check_level
from millstream.errors import Rejected
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.model.error_code import ErrorCode

ENTRIES_MAX: Final = 100_000
"""Entries of a cluster, so that the state fits into a snapshot and into the memory of each shard."""
NAME_CHARACTERS_MAX: Final = 1024


def decide_create_acls(state: ControllerState, request: CreateAcls, rules: Rules) -> Decision:
    """Create the entries that can be."""
    _ = rules
    results: list[Result] = []
    created: dict[AclEntry, None] = {}
    for entry in request.entries:
        try:
            check_level(state)
            _check(entry)
            if entry not in state.security.rules.entries:
                if len(state.security.rules.entries) + len(created) >= ENTRIES_MAX:
                    raise Rejected(f"There are {ENTRIES_MAX} access control entries already")
                created[entry] = None
            results.append(Result())
        except Rejected as error:
            results.append(Result(error.code, error.message))
    commands: tuple[AnyCommand, ...] = (AclsCreated(entries=tuple(created)),) if created else ()
    return Decision(tuple(results), commands)


def decide_delete_acls(state: ControllerState, request: DeleteAcls, rules: Rules) -> Decision:
    """Delete what the filters mean. An entry that several filters mean is in the result of the first."""
    _ = rules
    results: list[Result] = []
    deleted: dict[AclEntry, None] = {}
    for wanted in request.filters:
        found = tuple(entry for entry in state.security.rules.entries if wanted.matches(entry) and entry not in deleted)
        deleted.update(dict.fromkeys(found))
        results.append(Result(acls=found))
    commands: tuple[AnyCommand, ...] = (AclsDeleted(entries=tuple(deleted)),) if deleted else ()
    return Decision(tuple(results), commands)


def _check(entry: AclEntry) -> None:
    """Raises Rejected for an entry that cannot be in force."""
    known = OPERATIONS_OF.get(entry.resource_type)
    if known is None or entry.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise Rejected("The resource type or the pattern type of the entry is unknown")
    if entry.permission not in (Permission.DENY, Permission.ALLOW):
        raise Rejected("The permission type of the entry is unknown")
    if entry.operation != Operation.ALL and entry.operation not in known:
        kind = ResourceType(entry.resource_type).name
        raise Rejected(f"ResourceType {kind} only supports operations {', '.join(sorted(one.name for one in known))}")
    if entry.resource_type == ResourceType.CLUSTER and entry.name != CLUSTER_NAME:
        raise Rejected(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not entry.name or max(map(len, (entry.name, entry.principal, entry.host))) > NAME_CHARACTERS_MAX:
        raise Rejected(f"Names of an entry have 1 to {NAME_CHARACTERS_MAX} characters")
    kind, separator, name = entry.principal.partition(":")
    if not kind or not separator or not name:
        raise Rejected(
            f"Could not parse principal from `{entry.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if not entry.host:
        raise Rejected("The host of the entry is empty", ErrorCode.INVALID_REQUEST)
