"""What the registry does when it is asked to: register, look up, delete, configure.

Each operation looks at the state and gives a ``Decision``: the answer, and the events that have to be written before it
may be given. It changes nothing; the events come back through the topic. The caller runs one operation after the other,
each on a state that has every record that was written before. Rules and error codes are those of Confluent's Schema
Registry.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from millstream.registry.compatibility import incompatibilities
from millstream.registry.formats.parsed import InvalidSchema, Named, Parsed
from millstream.registry.formats.parsing import full_identity, parse, resolve
from millstream.registry.model import (
    SCHEMA_BYTES_MAX,
    Config,
    Mode,
    Reference,
    Refused,
    Registered,
    Schema,
    SchemaId,
    Subject,
    VersionNumber,
    invalid_schema,
    not_permitted,
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
    SubjectDeleted,
)
from millstream.registry.state import State
from millstream.registry.subjects import beside, context_of, is_whole

PARSED_MAX: Final = 256
"""Parsed schemas that are kept."""


class Decision(msgspec.Struct, frozen=True):
    """What to answer, after ``events`` are written."""

    answer: Any
    events: tuple[Event, ...] = ()


class Submission(msgspec.Struct, frozen=True):
    """A schema to register or to compare; ``id`` and ``version`` are for subjects in mode IMPORT.

    ``takes_over`` names the parts of the schema that the request leaves open, among ``metadata`` and ``rule_set``: a
    new version has those of the latest one.
    """

    schema: Schema
    id: SchemaId | None = None
    version: VersionNumber | None = None
    takes_over: tuple[str, ...] = ()


class Service:
    """The operations on one state."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._parsed: OrderedDict[tuple[Schema, tuple[Named, ...], bool], Parsed] = OrderedDict()

    # Registering and looking up

    def register(self, subject: Subject, submission: Submission, *, normalize: bool) -> Decision:
        """Give a schema an id, and a version under ``subject``, unless it has both.

        A version that is there is found in every mode: producers that register their schemas at each start continue.
        """
        mode = self.state.effective_mode(subject)
        is_import = mode == "IMPORT"
        schema, parsed = self._submitted(subject, submission.schema, normalize)
        held = self._same(subject, parsed, schema, normalize, deleted=False)
        if held is None and not is_import and submission.takes_over:
            schema = self._completed(subject, schema, submission.takes_over)
            held = self._same(subject, parsed, schema, normalize, deleted=False)
        if held is not None and submission.id in (None, held.id):
            return Decision(self._identified(held))
        self._writable(subject)
        if is_import != (submission.id is not None):
            raise not_permitted(f"Subject '{subject}' is not in {'read-write' if is_import else 'import'} mode")
        if not is_import:
            self._check_compatible(subject, schema, parsed)
        context = context_of(subject)
        schema_id = submission.id or self.state.id_of(full_identity(schema, parsed.identity), context)
        registered = Registered(
            subject,
            self._version_for(subject, submission.version, mode),
            schema_id or SchemaId(self.state.last_id(context) + 1),
            schema,
        )
        self._check_id(registered, parsed)
        return Decision(self._identified(registered), (SchemaWritten(registered),))

    def look_up(self, subject: Subject, submission: Submission, *, normalize: bool, deleted: bool) -> Registered:
        """The version of ``subject`` that has this schema."""
        if not self.state.versions(subject, deleted=deleted):
            raise subject_not_found(subject)
        schema, parsed = self._submitted(subject, submission.schema, normalize, is_new=False)
        found = self._same(subject, parsed, schema, normalize, deleted=deleted)
        if found is None and submission.takes_over:
            schema = self._completed(subject, schema, submission.takes_over)
            found = self._same(subject, parsed, schema, normalize, deleted=deleted)
        if found is None:
            raise schema_not_found()
        return found

    def check(
        self, subject: Subject, submission: Submission, version: VersionNumber | None, *, every: bool, normalize: bool
    ) -> list[str]:
        """Why a schema may not become the next version; against one version (None: the latest), or as a registration
        would check it (``every``). A subject without versions takes any schema as its latest.
        """
        earlier = self.state.versions(subject)
        if version is not None:
            earlier = [held for held in earlier if held.version == version]
            if not earlier:
                raise version_not_found(version)
        elif not every:
            earlier = earlier[-1:]
        schema, parsed = self._submitted(subject, submission.schema, normalize)
        return self._incompatibilities(
            subject, self._completed(subject, schema, submission.takes_over), parsed, earlier
        )

    def parsed(self, registered: Registered) -> Parsed:
        """A stored version, parsed.

        Raises:
            InvalidSchema: it is not valid, as one that another registry took may be.
        """
        return self._parse(registered.subject, registered.schema, stored=True)

    def _submitted(
        self, subject: Subject, schema: Schema, normalize: bool, *, is_new: bool = True
    ) -> tuple[Schema, Parsed]:
        """A schema as it would be stored, with its references' versions as numbers. One that is not new may be stored
        already, and is not checked as strictly.
        """
        if len(schema.text.encode("utf-8", "surrogatepass")) > SCHEMA_BYTES_MAX:
            raise Refused(422, 42209, f"Schema is too large: the limit is {SCHEMA_BYTES_MAX} bytes")
        schema = msgspec.structs.replace(
            schema, references=tuple(self._numbered(subject, reference) for reference in schema.references)
        )
        try:
            parsed = self._parse(subject, schema, stored=not is_new)
            if normalize or self.state.effective_config(subject).normalize:
                normal = msgspec.structs.replace(schema, text=parsed.normalized)
                parsed = self._parse(subject, normal, stored=not is_new)
        except InvalidSchema as error:
            raise invalid_schema(schema.type, str(error)) from None
        return msgspec.structs.replace(schema, text=parsed.text), parsed

    def _numbered(self, subject: Subject, reference: Reference) -> Reference:
        if reference.version != -1:
            return reference
        latest = self.state.version(beside(subject, reference.subject), None)
        return Reference(reference.name, reference.subject, latest.version)

    def _parse(self, subject: Subject, schema: Schema, *, stored: bool = False) -> Parsed:
        def find(reference: Reference) -> Schema:
            return self.state.referred(subject, reference)

        key = (schema, tuple(resolve(schema, find)), stored)
        parsed = self._parsed.pop(key, None) or parse(schema, find, stored=stored)
        self._parsed[key] = parsed
        if len(self._parsed) > PARSED_MAX:
            self._parsed.popitem(last=False)
        return parsed

    def _same(
        self, subject: Subject, parsed: Parsed, schema: Schema, normalize: bool, *, deleted: bool
    ) -> Registered | None:
        wanted, context = full_identity(schema, parsed.identity), context_of(subject)
        for registered in reversed(self.state.versions(subject, deleted=deleted)):
            if self.state.identity(registered.id, context) == wanted:
                return registered
            if normalize and self._normal_identity(registered) == wanted:
                return registered
        return None

    def _normal_identity(self, registered: Registered) -> str | None:
        try:
            normal = msgspec.structs.replace(registered.schema, text=self.parsed(registered).normalized)
            return full_identity(normal, self._parse(registered.subject, normal, stored=True).identity)
        except InvalidSchema:
            return None

    def _check_compatible(self, subject: Subject, schema: Schema, parsed: Parsed) -> None:
        found = self._incompatibilities(subject, schema, parsed, self.state.versions(subject))
        if found:
            level = self.state.level(subject)
            raise Refused(
                409,
                409,
                f"Schema being registered is incompatible with an earlier schema for subject '{subject}', "
                f"compatibility level {level}, details: [{'; '.join(found)[:4000]}]",
            )

    def _incompatibilities(
        self, subject: Subject, schema: Schema, parsed: Parsed, earlier: list[Registered]
    ) -> list[str]:
        config = self.state.effective_config(subject)
        if config.group is not None:
            group = _property(schema, config.group)
            earlier = [each for each in earlier if _property(each.schema, config.group) == group]
        return incompatibilities(self.state.level(subject), parsed, earlier, self.parsed)

    def _version_for(self, subject: Subject, given: VersionNumber | None, mode: Mode) -> VersionNumber:
        expected = self.state.next_version(subject)
        if given is None or given == expected or mode == "IMPORT":
            return given or expected
        raise Refused(422, 42202, f"The specified version '{given}' is not one more than the previous one")

    def _check_id(self, registered: Registered, parsed: Parsed) -> None:
        """An id keeps its schema, and a version its id."""
        context = context_of(registered.subject)
        try:
            self.state.schema(registered.id, context)
        except Refused:
            pass
        else:
            if self.state.identity(registered.id, context) != full_identity(registered.schema, parsed.identity):
                raise Refused(422, 42207, f"Overwrite new schema with id {registered.id} is not permitted.")
        for held in self.state.versions(registered.subject, deleted=True):
            if held.version == registered.version and held.id != registered.id:
                raise Refused(
                    422,
                    42207,
                    f"Version {held.version} of subject '{held.subject}' has the id {held.id}, not {registered.id}",
                )

    def _identified(self, registered: Registered) -> dict[str, Any]:
        return {"id": registered.id, "version": registered.version, "guid": guid_of(registered.schema)}

    def _completed(self, subject: Subject, schema: Schema, takes_over: Sequence[str]) -> Schema:
        """A schema with the parts that it takes over from the latest version."""
        live = self.state.versions(subject)
        taken = {name: getattr(live[-1].schema, name) for name in takes_over} if live else {}
        return msgspec.structs.replace(schema, **taken)

    # Deleting

    def delete_version(self, subject: Subject, version: VersionNumber | None, *, permanent: bool) -> Decision:
        """Hide a version (soft delete), or with ``permanent`` erase a hidden one."""
        self._writable(subject)
        held = self.state.version(subject, version, deleted=version is not None or permanent)
        if permanent:
            if not held.deleted:
                raise Refused(
                    404,
                    40407,
                    f"Subject '{subject}' Version {held.version} was not deleted first "
                    "before being permanently deleted",
                )
            return Decision(held.version, (SchemaErased(subject, held.version),))
        if held.deleted:
            raise Refused(
                404,
                40406,
                f"Subject '{subject}' Version {held.version} was soft deleted. "
                "Set permanent=true to delete permanently",
            )
        self._check_unused([held])
        hidden = msgspec.structs.replace(held, deleted=True)
        is_last = len(self.state.versions(subject)) == 1
        return Decision(held.version, (SchemaWritten(hidden), *(self._unconfigured(subject) if is_last else ())))

    def delete_subject(self, subject: Subject, *, permanent: bool) -> Decision:
        """Hide every version of a subject, or with ``permanent`` erase a hidden subject."""
        self._writable(subject)
        every, live = self.state.versions(subject, deleted=True), self.state.versions(subject)
        if not every:
            raise subject_not_found(subject)
        if permanent:
            if live:
                raise Refused(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
            erased = tuple(SchemaErased(subject, held.version) for held in every)
            return Decision([held.version for held in every], erased)
        if not live:
            # Confluent's words to the letter, without a space in the middle: clients compare them.
            raise Refused(404, 40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")
        self._check_unused(live)
        hidden = SubjectDeleted(subject, live[-1].version)
        return Decision([held.version for held in live], (hidden, *self._unconfigured(subject)))

    def _check_unused(self, versions: list[Registered]) -> None:
        leaving = {(held.subject, held.version) for held in versions}
        for held in versions:
            for other in self.state.referrers(held.subject, held.version):
                if (other.subject, other.version) not in leaving:
                    raise Refused(
                        422,
                        42206,
                        "One or more references exist to the schema "
                        f"{{magic=1,keytype=SCHEMA,subject={held.subject},version={held.version}}}.",
                    )

    def _unconfigured(self, subject: Subject) -> tuple[Event, ...]:
        """A deleted subject takes its configuration along."""
        config = (ConfigWritten(subject, None),) if self.state.config(subject) is not None else ()
        mode = (ModeWritten(subject, None),) if self.state.mode(subject) is not None else ()
        return (*config, *mode)

    # Configuration

    def set_config(self, subject: Subject | None, config: Config) -> Decision:
        """Configure a subject, a context or (None) everything; what ``config`` leaves open stays as it is."""
        self._writable(subject)
        held = self.state.config(subject) or Config()
        merged = Config(
            config.level or held.level,
            held.normalize if config.normalize is None else config.normalize,
            held.alias if config.alias is None else config.alias or None,
            held.group if config.group is None else config.group or None,
        )
        return Decision(config, (ConfigWritten(subject, merged),))

    def remove_config(self, subject: Subject | None) -> Decision:
        """Let the next wider scope decide again; the answer is the configuration that was removed."""
        self._writable(subject)
        held = self.state.config(subject)
        if held is None and subject is not None:
            raise subject_not_found(subject)
        events = (ConfigWritten(subject, None),) if held is not None else ()
        return Decision(held or self.state.effective_config(None), events)

    def set_mode(self, subject: Subject | None, mode: Mode, *, force: bool) -> Decision:
        """Say what may be done to a subject, a context or (None) everything."""
        if mode == "IMPORT" and not force and self._within(subject):
            raise not_permitted("Cannot import since found existing subjects")
        return Decision(mode, (ModeWritten(subject, mode),))

    def remove_mode(self, subject: Subject | None) -> Decision:
        """Let the next wider scope decide again; the answer is the mode that was removed."""
        held = self.state.mode(subject)
        if held is None and subject is not None:
            raise subject_not_found(subject)
        return Decision(held or self.state.effective_mode(None), (ModeWritten(subject, None),) if held else ())

    def _within(self, subject: Subject | None) -> list[Subject]:
        if subject is None:
            return self.state.subjects()
        if is_whole(subject):
            return [each for each in self.state.subjects() if context_of(each) == context_of(subject)]
        return [subject] if self.state.versions(subject) else []

    def _writable(self, subject: Subject | None) -> None:
        if self.state.effective_mode(subject).startswith("READONLY"):
            raise not_permitted(f"Subject {subject} is in read-only mode")


def guid_of(schema: Schema) -> str:
    """A name of a schema that is the same in every registry; clients may put it into a record's header."""
    content = "\1".join((schema.type, schema.text, *map(repr, schema.references), schema.metadata, schema.rule_set))
    return str(uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16]))


def _property(schema: Schema, name: str) -> str | None:
    properties = json.loads(schema.metadata).get("properties") if schema.metadata else None
    return properties.get(name) if isinstance(properties, dict) else None
