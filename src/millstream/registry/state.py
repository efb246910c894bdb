"""The registry's state: a function of the records of ``_schemas`` in their order, and nothing else.

``apply`` takes one event after the other; applying a record again changes nothing, so it does not matter if a write was
repeated. What is asked of the state is read-only. Memory is bounded by the topic: every version that was not deleted
permanently is held once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from millstream.registry.formats.parsed import InvalidSchema
from millstream.registry.formats.parsing import identity_of
from millstream.registry.model import (
    DEFAULT_LEVEL,
    DEFAULT_MODE,
    Config,
    Context,
    Level,
    Mode,
    Reference,
    Registered,
    Schema,
    SchemaId,
    Subject,
    VersionNumber,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from millstream.registry.records import (
    ConfigWritten,
    Event,
    ModeWritten,
    SchemaErased,
    SchemaWritten,
    SubjectCleared,
    SubjectDeleted,
)
from millstream.registry.subjects import DEFAULT, beside, context_of, whole

_V = TypeVar("_V")


class _Ids:
    """The schema ids of a context.

    ``schemas`` holds every id that a version has; ``last`` never falls while the process lives, so that no id is given
    twice. ``by_identity`` finds the id of a schema; ids in ``unknown`` are not in it yet, because their identity is
    costly and seldom asked for.
    """

    def __init__(self) -> None:
        self.schemas: dict[SchemaId, Schema] = {}
        self.used: dict[SchemaId, set[tuple[Subject, VersionNumber]]] = {}
        self.last = SchemaId(0)
        self.by_identity: dict[str, SchemaId] = {}
        self.identities: dict[SchemaId, str] = {}
        self.unknown: dict[SchemaId, Subject] = {}

    def forget_identity(self, schema_id: SchemaId) -> None:
        """The id was deleted, or has another schema."""
        identity = self.identities.pop(schema_id, None)
        if identity is not None and self.by_identity.get(identity) == schema_id:
            del self.by_identity[identity]


class State:
    """What is registered and configured. Lifecycle: empty, then ``apply`` for each record, for ever."""

    def __init__(self) -> None:
        self._subjects: dict[Subject, dict[VersionNumber, Registered]] = {}
        self._ids: dict[Context, _Ids] = {}
        self._configs: dict[Subject | None, Config] = {}
        self._modes: dict[Subject | None, Mode] = {}

    def apply(self, event: Event, *, only_if_free: bool = False) -> None:
        """Take in what a record says. ``only_if_free``: a version or an id that is taken stays as it is."""
        match event:
            case SchemaWritten(registered):
                if not (only_if_free and self._is_taken(registered)):
                    self._put(registered)
            case SchemaErased(subject, version):
                if not only_if_free:
                    self._erase(subject, version)
            case ConfigWritten(subject, config):
                _set(self._configs, subject, config)
            case ModeWritten(subject, mode):
                _set(self._modes, subject, mode)
            case SubjectDeleted(subject, last_version):
                for version in [v for v in self._subjects.get(subject, {}) if v <= last_version]:
                    held = self._subjects[subject][version]
                    self._subjects[subject][version] = Registered(subject, version, held.id, held.schema, True)
            case SubjectCleared(subject):
                for version in list(self._subjects.get(subject, {})):
                    self._erase(subject, version)

    def is_free(self, registered: Registered) -> bool:
        """Whether there is no such version, not even a deleted one."""
        return registered.version not in self._subjects.get(registered.subject, {})

    def holds(self, registered: Registered) -> bool:
        """Whether exactly this version is registered."""
        return self._subjects.get(registered.subject, {}).get(registered.version) == registered

    def event_of(self, subject: Subject, version: VersionNumber) -> Event:
        """What a record of this version has to say."""
        held = self._subjects.get(subject, {}).get(version)
        return SchemaErased(subject, version) if held is None else SchemaWritten(held)

    def _is_taken(self, registered: Registered) -> bool:
        """Whether the version is another one, or the id that of another schema."""
        if not self.is_free(registered):
            return not self.holds(registered)
        context = context_of(registered.subject)
        ids = self._ids.get(context)
        if ids is None or ids.schemas.get(registered.id, registered.schema) == registered.schema:
            return False
        identity = identity_of(registered.schema, lambda reference: self.referred(registered.subject, reference))
        return self.identity(registered.id, context) != identity

    def _put(self, registered: Registered) -> None:
        subject, version = registered.subject, registered.version
        held = self._subjects.get(subject, {}).get(version)
        if held is not None and held.id != registered.id:
            self._erase(subject, version)
        self._subjects.setdefault(subject, {})[version] = registered
        ids = self._ids.setdefault(context_of(subject), _Ids())
        ids.last = max(ids.last, registered.id)
        if ids.schemas.get(registered.id) != registered.schema:
            ids.forget_identity(registered.id)
            ids.schemas[registered.id] = registered.schema
            ids.unknown[registered.id] = subject
        ids.used.setdefault(registered.id, set()).add((subject, version))

    def _erase(self, subject: Subject, version: VersionNumber) -> None:
        registered = self._subjects.get(subject, {}).pop(version, None)
        if registered is None:
            return
        if not self._subjects[subject]:
            del self._subjects[subject]
        ids = self._ids[context_of(subject)]
        ids.used[registered.id].discard((subject, version))
        if not ids.used[registered.id]:
            del ids.used[registered.id], ids.schemas[registered.id]
            ids.unknown.pop(registered.id, None)
            ids.forget_identity(registered.id)

    # Subjects and versions

    def subjects(self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False) -> list[Subject]:
        """Names of subjects that start with ``prefix``; ``:*:`` at its start means every context, ``:.:`` the default
        one alone.
        """
        every, default = prefix.startswith(":*:"), prefix.startswith(":.:")
        rest = prefix[3:] if every or default else prefix

        def wanted(subject: Subject) -> bool:
            plain = subject.split(":", 2)[2] if every and subject.startswith(":.") else subject
            if not plain.startswith(rest) or (default and context_of(subject) != DEFAULT):
                return False
            live = any(not registered.deleted for registered in self._subjects[subject].values())
            return not live if deleted_only else deleted or live

        return sorted(filter(wanted, self._subjects))

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[Registered]:
        """Versions of a subject in order, with ``deleted`` also soft deleted ones. Empty for an unknown subject."""
        held = self._subjects.get(subject, {})
        return [held[version] for version in sorted(held) if deleted or not held[version].deleted]

    def version(self, subject: Subject, version: VersionNumber | None, *, deleted: bool = False) -> Registered:
        """A version, or with None the latest.

        Raises:
            Refused: there is no such subject or version.
        """
        held = self.versions(subject, deleted=deleted)
        if not held:
            raise subject_not_found(subject)
        if version is None:
            return held[-1]
        for registered in held:
            if registered.version == version:
                return registered
        raise version_not_found(version)

    def next_version(self, subject: Subject) -> VersionNumber:
        """The number that the next version of a subject gets; numbers of soft deleted versions are not used again."""
        return VersionNumber(max(self._subjects.get(subject, {}), default=0) + 1)

    # Schema ids

    def schema(self, schema_id: SchemaId, context: Context) -> Schema:
        """The schema of an id.

        Raises:
            Refused: no schema has it.
        """
        ids = self._ids.get(context)
        if ids is None or schema_id not in ids.schemas:
            raise schema_not_found(schema_id)
        return ids.schemas[schema_id]

    def schemas(self, context: Context) -> list[tuple[SchemaId, Schema]]:
        """Every id of a context with its schema."""
        return list(self._ids[context].schemas.items()) if context in self._ids else []

    def last_id(self, context: Context) -> SchemaId:
        """The largest id given in a context, 0 if none was."""
        return self._ids[context].last if context in self._ids else SchemaId(0)

    def users(self, schema_id: SchemaId, context: Context, *, deleted: bool = False) -> list[Registered]:
        """The versions that have an id, by subject and version.

        Raises:
            Refused: there is no such id.
        """
        self.schema(schema_id, context)
        held = [self._subjects[subject][version] for subject, version in sorted(self._ids[context].used[schema_id])]
        return [registered for registered in held if deleted or not registered.deleted]

    def id_of(self, identity: str, context: Context) -> SchemaId | None:
        """The id of a schema in a context."""
        ids = self._ids.get(context)
        if ids is None:
            return None
        for schema_id in list(ids.unknown):
            self.identity(schema_id, context)
        return ids.by_identity.get(identity)

    def identity(self, schema_id: SchemaId, context: Context) -> str:
        """The identity of the schema that has an id."""
        ids = self._ids[context]
        subject = ids.unknown.pop(schema_id, None)
        if subject is not None:
            schema = ids.schemas[schema_id]
            identity = identity_of(schema, lambda reference: self.referred(subject, reference))
            ids.identities[schema_id] = identity
            ids.by_identity.setdefault(identity, schema_id)
        return ids.identities[schema_id]

    def contexts(self) -> list[Context]:
        """Every context that has a schema, and the default one."""
        return sorted({DEFAULT, *(context for context, ids in self._ids.items() if ids.schemas)})

    # References

    def referred(self, subject: Subject, reference: Reference) -> Schema:
        """The schema that a schema under ``subject`` refers to; soft deleted ones count.

        Raises:
            InvalidSchema: it does not exist.
        """
        target = beside(subject, reference.subject)
        held = self._subjects.get(target, {})
        number = max(held, default=0) if reference.version == -1 else reference.version
        if VersionNumber(number) not in held:
            raise InvalidSchema(
                f"the reference {reference.name!r} leads to version {reference.version} of subject "
                f"'{reference.subject}', which does not exist"
            )
        return held[VersionNumber(number)].schema

    def referrers(self, subject: Subject, version: VersionNumber) -> Iterator[Registered]:
        """The live versions whose schemas refer to a version."""
        for other, held in self._subjects.items():
            for registered in held.values():
                if not registered.deleted and any(
                    reference.version == version and beside(other, reference.subject) == subject
                    for reference in registered.schema.references
                ):
                    yield registered

    # Configuration

    def config(self, subject: Subject | None) -> Config | None:
        """What is configured for exactly this subject, context or (None) everything."""
        return self._configs.get(subject)

    def mode(self, subject: Subject | None) -> Mode | None:
        """The mode of exactly this subject, context or (None) everything."""
        return self._modes.get(subject)

    def effective_config(self, subject: Subject | None) -> Config:
        """What holds for a subject: its own, then its context's, then the global configuration, then the defaults."""
        found = [self._configs[scope] for scope in _scopes(subject) if scope in self._configs]
        level: Level = DEFAULT_LEVEL
        for config in reversed(found):
            level = config.level or level
        return Config(
            level,
            _first([config.normalize for config in found]),
            found[0].alias if found and _scopes(subject)[0] in self._configs else None,
            _first([config.group for config in found]),
        )

    def level(self, subject: Subject | None) -> Level:
        """The compatibility level that holds for a subject."""
        return self.effective_config(subject).level or DEFAULT_LEVEL

    def effective_mode(self, subject: Subject | None) -> Mode:
        """The mode that holds for a subject; READONLY_OVERRIDE of a wider scope wins."""
        found: list[Mode] = [self._modes[scope] for scope in _scopes(subject) if scope in self._modes]
        if "READONLY_OVERRIDE" in found:
            return "READONLY_OVERRIDE"
        return found[0] if found else DEFAULT_MODE


def _scopes(subject: Subject | None) -> list[Subject | None]:
    if subject is None:
        return [None]
    return list(dict.fromkeys((subject, whole(context_of(subject)), None)))


def _set(held: dict[Subject | None, _V], subject: Subject | None, value: _V | None) -> None:
    if value is None:
        held.pop(subject, None)
    else:
        held[subject] = value


def _first(values: list[_V | None]) -> _V | None:
    return next((value for value in values if value is not None), None)
