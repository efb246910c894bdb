"""Where decoders get schemas from: a registry, asked once for each id.

Ids never change their schema, so an answer is kept for ever; that an id is unknown is kept for some seconds, because it
may come. A registry that cannot be reached is an error of the whole batch (``Unavailable``), because it says nothing
about a record; an id that the registry does not know, or whose references it has lost, is an error of the records that
carry it.
"""

import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from millstream.client.schema_registry import PREFIX, RegistryAccess, RegistryRefused, ask, registry_access
from millstream.errors import Rejected, Unavailable
from millstream.registry.formats.parsed import Named
from millstream.registry.model import SCHEMA_TYPES, Schema

_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_SCHEMA: Final = 40403
_UNKNOWN_S: Final = 10.0
_UNKNOWN_MAX: Final = 10_000
_TRIES: Final = 3


class Resolved(msgspec.Struct, frozen=True):
    """A schema with everything that it refers to, each before what uses it.

    ``id``, ``subject`` and ``version`` are where it came from, 0 and empty if that is not known.
    """

    schema: Schema
    references: tuple[Named, ...] = ()
    id: int = 0
    subject: str = ""
    version: int = 0


class Use(msgspec.Struct, frozen=True):
    """A version of a subject that has an id; ``deleted`` is a soft delete."""

    subject: str
    version: int
    deleted: bool


class SchemaSource(Protocol):
    """Schemas by id, where an id is used, and the latest schema of a subject."""

    def by_id(self, schema_id: int) -> Resolved | None:
        """The schema of an id, None if the registry has none.

        Raises:
            Unavailable: the registry does not answer.
            Rejected: it is no schema that can be read.
        """
        ...

    def uses(self, schema_id: int) -> tuple[Use, ...]:
        """The versions that have an id, those that were deleted softly too; empty if the registry does not say.

        Raises:
            Unavailable: the registry does not answer.
        """
        ...

    def latest(self, subject: str) -> Resolved:
        """The latest version of a subject.

        Raises:
            Rejected: there is no such subject.
            Unavailable: the registry does not answer.
        """
        ...

    def first(self, subject: str) -> Resolved | None:
        """The oldest version of a subject that the registry still has; None if it does not say.

        Raises:
            Unavailable: the registry does not answer.
        """
        ...


class RegistrySchemas:
    """Schemas of a registry with Confluent's REST API.

    ``conf`` is that of confluent-kafka's ``SchemaRegistryClient``: ``url``, ``basic.auth.user.info``,
    ``ssl.ca.location`` and so on; or a ``RegistryAccess``.
    """

    def __init__(self, conf: Mapping[str, Any] | RegistryAccess) -> None:
        """Raises:
        Rejected: a setting is not valid.
        """
        self._access = conf if isinstance(conf, RegistryAccess) else _access(conf)
        self._by_id: dict[int, Resolved | Rejected] = {}
        self._uses: dict[int, tuple[Use, ...]] = {}
        self._unknown: dict[int, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """What was learnt stays; the copy asks again."""
        return RegistrySchemas, (self._access,)

    def by_id(self, schema_id: int) -> Resolved | None:
        """See ``SchemaSource``."""
        if schema_id not in self._by_id:
            if time.monotonic() - self._unknown.get(schema_id, -_UNKNOWN_S) < _UNKNOWN_S:
                return None
            try:
                schema = self._get(f"/schemas/ids/{schema_id}")
            except RegistryRefused as error:
                if error.error_code != _NO_SCHEMA:  # also what is no registry and answers 404
                    raise Unavailable(f"{self._name} does not give id {schema_id}: {error}") from error
                if len(self._unknown) >= _UNKNOWN_MAX:
                    self._unknown.clear()
                self._unknown[schema_id] = time.monotonic()
                return None
            try:
                self._by_id[schema_id] = msgspec.structs.replace(self._resolved(schema), id=schema_id)
            except Rejected as error:
                self._by_id[schema_id] = error
        found = self._by_id[schema_id]
        if isinstance(found, Rejected):
            raise found
        return found

    def uses(self, schema_id: int) -> tuple[Use, ...]:
        """See ``SchemaSource``."""
        if schema_id not in self._uses:
            path = f"/schemas/ids/{schema_id}/versions"
            try:
                live = {(str(use["subject"]), int(use["version"])) for use in self._get(path)}
                every = {(str(use["subject"]), int(use["version"])) for use in self._get(f"{path}?deleted=true")}
            except RegistryRefused as error:
                if error.status not in (404, 405, 501):
                    raise Unavailable(f"{self._name} does not say where id {schema_id} is used: {error}") from error
                live, every = set[Any](), set[Any]()  # an older registry
            self._uses[schema_id] = tuple(
                Use(name, number, (name, number) not in live) for name, number in sorted(every | live)
            )
        return self._uses[schema_id]

    def latest(self, subject: str) -> Resolved:
        """See ``SchemaSource``."""
        try:
            found = self._get(f"/subjects/{_quoted(subject)}/versions/latest")
        except RegistryRefused as error:
            if error.error_code == _NO_SUBJECT:
                raise Rejected(
                    f"{self._name} has no subject {subject}; 'millstream schema register {subject} FILE' makes it"
                ) from None
            raise Unavailable(f"{self._name} does not give {subject}: {error}") from error
        return msgspec.structs.replace(
            self._resolved(found),
            id=int(found["id"]),
            subject=str(found.get("subject") or subject),
            version=int(found.get("version") or 0),
        )

    def first(self, subject: str) -> Resolved | None:
        """See ``SchemaSource``."""
        try:
            versions = self._get(f"/subjects/{_quoted(subject)}/versions?deleted=true")
            return self._resolved(self._version(subject, min(versions)))
        except (RegistryRefused, Rejected, ValueError):
            return None

    @property
    def _name(self) -> str:
        return f"the schema registry at {self._access.url}"

    def _get(self, path: str) -> Any:
        """The document at a path. Raises RegistryRefused; Unavailable, also for what is no registry, and for TLS or a
        login that fails: ``Rejected`` would be about the record.
        """
        try:
            found = ask(self._access, "GET", path, tries=_TRIES)
        except RegistryRefused:
            raise
        except (Unavailable, Rejected) as error:
            advice = "; start it, or correct its URL" if isinstance(error, Unavailable) else ""
            raise Unavailable(f"{self._name} cannot be reached: {error.message}{advice}", error.code) from error
        if not isinstance(found, dict | list):
            raise Unavailable(f"{self._name} does not answer as a schema registry does")
        return found  # pyright: ignore[reportUnknownVariableType]

    def _version(self, subject: str, version: int) -> Any:
        return self._get(f"/subjects/{_quoted(subject)}/versions/{version}?deleted=true")

    def _resolved(self, found: Any) -> Resolved:
        references: dict[str, Named] = {}

        def visit(held: Any) -> Schema:
            for reference in held.get("references") or ():
                name = str(reference["name"])
                if name not in references:
                    references[name] = Named(name, visit(self._referred(reference)))
            kind = str(held.get("schemaType") or "AVRO")
            if kind not in SCHEMA_TYPES:
                raise Rejected(f"schemas of type {kind} are not known")
            return Schema(str(held["schema"]), kind)

        schema = visit(found)
        return Resolved(schema, tuple(references.values()))

    def _referred(self, reference: Any) -> Any:
        """What a reference leads to.

        Raises:
            Rejected: the registry has lost it.
        """
        subject, version = str(reference["subject"]), int(reference["version"])
        try:
            return self._version(subject, version)
        except RegistryRefused as error:
            where = f"version {version} of {subject}"
            if error.error_code in (_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA):
                raise Rejected(f"it refers to {where}, which the registry does not have") from error
            raise Unavailable(f"{self._name} does not give {where}: {error}") from error


def _access(conf: Mapping[str, Any]) -> RegistryAccess:
    """The access of settings of ``SchemaRegistryClient``, whose TLS is the registry's."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()}
    own = {PREFIX + name if name.startswith("ssl.") else name: text for name, text in texts.items() if name != "url"}
    return registry_access(texts.get("url"), own)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
