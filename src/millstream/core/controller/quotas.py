"""Decisions about quotas: AlterClientQuotas (KIP-546). Each entity has its own result; codes and words are Kafka's.

An address is a number, never a host name: Kafka would look the name up once, and hold a quota for an address that the
name may lose.
"""

from typing import Final

from millstream.core.controller.commands import AnyCommand, QuotasChanged
from millstream.core.controller.requests import AlterQuotas, ChangeQuotas, Result
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.core.controller.users import check_level
from millstream.core.quota.limits import (
    CLIENT_ID,
    CLIENT_KINDS,
    IP,
    IP_KINDS,
    USER,
    WHOLE,
    Entity,
    entity_of,
    plain_address,
)
from millstream.core.quota.limits import CONNECTION_CREATION_RATE as CONNECTIONS
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

ENTITIES_MAX: Final = 100_000
"""Entities with quotas, so that the state fits into a snapshot and into the memory of each shard."""
NAME_CHARACTERS_MAX: Final = 1024


def decide_alter_quotas(state: ControllerState, request: AlterQuotas, rules: Rules) -> Decision:
    """Change what can be changed."""
    _ = rules
    results: list[Result] = []
    commands: list[AnyCommand] = []
    seen: set[Entity] = set()
    added = 0
    for wanted in request.entities:
        try:
            check_level(state)
            entity = _entity(wanted)
            if entity in seen:
                raise Rejected(f"Ignoring duplicate entity {_shown(entity)}", ErrorCode.INVALID_REQUEST)
            seen.add(entity)
            changes = _changes(entity, wanted, state.security.limits.entities.get(entity, {}))
            if entity not in state.security.limits.entities and changes:
                added += 1
                if len(state.security.limits.entities) + added > ENTITIES_MAX:
                    raise Rejected(f"There are quotas for {ENTITIES_MAX} entities already", ErrorCode.INVALID_REQUEST)
            if changes:
                commands.append(QuotasChanged(entity=entity, changes=changes))
            results.append(Result())
        except Rejected as error:
            results.append(Result(error.code, error.message))
    return Decision(tuple(results), () if request.validate_only else tuple(commands))


def _entity(wanted: ChangeQuotas) -> Entity:
    """The entity. Raises Rejected for one that cannot have quotas."""
    names: dict[str, str | None] = {}
    for kind, name in wanted.parts:
        if kind in names:
            raise _invalid(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_CHARACTERS_MAX:
            raise _invalid(f"The name of a {kind} has at most {NAME_CHARACTERS_MAX} characters")
        names[kind] = name
    if not names:
        raise _invalid("Invalid empty client quota entity")
    if IP in names:
        if len(names) > 1:
            raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
        address = names[IP]
        if address is not None and plain_address(address) is None:
            raise _invalid(f"{address} is not a valid IP")
    return entity_of(names.items())


def _changes(entity: Entity, wanted: ChangeQuotas, present: dict[str, float]) -> dict[str, float | None]:
    """What differs from ``present``. Raises Rejected for a quota that cannot be in force."""
    seen: set[str] = set()
    changes: dict[str, float | None] = {}
    known = IP_KINDS if entity[0][0] == IP else CLIENT_KINDS
    for key, value in wanted.changes:
        if key in seen:
            raise _invalid(f"Duplicate quota key {key} not updating quota for this entity {_shown(entity)}")
        seen.add(key)
        if value is None:
            if key in present:
                changes[key] = None
            continue
        if key not in known:
            raise _invalid(f"Invalid configuration key {key}")
        if not value > 0:
            raise _invalid(f"Quota {key} must be greater than 0")
        largest = 2**31 - 1 if key == CONNECTIONS else 2**63 - 1
        if value > largest:
            kind = "an INT" if key == CONNECTIONS else "a LONG"
            raise _invalid(f"Proposed value for {key} is too large for {kind}.")
        if key in WHOLE and value % 1.0 > 1e-6:
            raise _invalid(f"{key} cannot be a fractional value.")
        if present.get(key) != value:
            changes[key] = value
    return changes


def _shown(entity: Entity) -> str:
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)


def _invalid(why: str) -> Rejected:
    return Rejected(why, ErrorCode.INVALID_REQUEST)
