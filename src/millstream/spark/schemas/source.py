"""Where decoders get schemas from: a registry, asked once for each id.

Ids never change their schema, so an answer is kept for ever; that an id is unknown is kept for some seconds, because it
may come. A registry that cannot be reached is an error of the whole batch (``Unavailable``), because it says nothing
about a record; an id that the registry does not know, or whose references it has lost, is an error of the records that
carry it.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from millstream.errors import Rejected, Unavailable
from millstream.registry.formats.parsed import Named
from millstream.registry.model import SCHEMA_TYPES, Schema

_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_SCHEMA: Final = 40403
_UNKNOWN_S: Final = 10.0
_UNKNOWN_MAX: Final = 10_000


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
    ``ssl.ca.location`` and so on.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._conf = dict(conf)
        self._client: Any = SchemaRegistryClient(self._conf)
        self._by_id: dict[int, Resolved | Rejected] = {}
        self._uses: dict[int, tuple[Use, ...]] = {}
        self._unknown: dict[int, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Connections stay; the copy makes its own."""
        return RegistrySchemas, (self._conf,)

    def by_id(self, schema_id: int) -> Resolved | None:
        """See ``SchemaSource``."""
        if schema_id not in self._by_id:
            if time.monotonic() - self._unknown.get(schema_id, -_UNKNOWN_S) < _UNKNOWN_S:
                return None
            try:
                with self._request():
                    schema = self._client.get_schema(schema_id)
            except SchemaRegistryError as error:
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
            try:
                with self._request():
                    live = {(use.subject, use.version) for use in self._client.get_schema_versions(schema_id)}
                    every = self._client.get_schema_versions(schema_id, deleted=True)
            except SchemaRegistryError as error:
                if error.http_status_code not in (404, 405, 501):
                    raise Unavailable(f"{self._name} does not say where id {schema_id} is used: {error}") from error
                every, live = [], set[Any]()  # an older registry
            named = {(use.subject, use.version) for use in every} | live
            self._uses[schema_id] = tuple(
                Use(name, number, (name, number) not in live) for name, number in sorted(named)
            )
        return self._uses[schema_id]

    def latest(self, subject: str) -> Resolved:
        """See ``SchemaSource``."""
        try:
            with self._request():
                found = self._client.get_latest_version(subject)
        except SchemaRegistryError as error:
            if error.error_code == _NO_SUBJECT:
                raise Rejected(
                    f"{self._name} has no subject {subject}; 'millstream schema register {subject} FILE' makes it"
                ) from None
            raise Unavailable(f"{self._name} does not give {subject}: {error}") from error
        resolved = self._resolved(found.schema)
        return msgspec.structs.replace(
            resolved, id=found.schema_id, subject=found.subject or subject, version=found.version or 0
        )

    def first(self, subject: str) -> Resolved | None:
        """See ``SchemaSource``."""
        try:
            with self._request():
                versions = self._client.get_versions(subject, deleted=True)
                found = self._client.get_version(subject, min(versions), deleted=True)
            return self._resolved(found.schema)
        except (SchemaRegistryError, Rejected, ValueError):
            return None

    @property
    def _name(self) -> str:
        return f"the schema registry at {self._conf.get('url')}"

    @contextmanager
    def _request(self) -> Generator[None]:
        """Around a request: any fault of a connection that the HTTP library reports is ``Unavailable``."""
        try:
            yield
        except Exception as error:
            # Not by class: which library it is depends on the version of confluent-kafka.
            if isinstance(error, OSError) or type(error).__module__.startswith("httpx"):
                raise Unavailable(f"{self._name} cannot be reached: {error}; start it, or correct its URL") from error
            raise

    def _resolved(self, found: Any) -> Resolved:
        references: dict[str, Named] = {}

        def visit(held: Any) -> Schema:
            for reference in held.references or ():
                if reference.name not in references:
                    references[reference.name] = Named(reference.name, visit(self._referred(reference)))
            kind = held.schema_type or "AVRO"
            if kind not in SCHEMA_TYPES:
                raise Rejected(f"schemas of type {kind} are not known")
            return Schema(held.schema_str, kind)

        schema = visit(found)
        return Resolved(schema, tuple(references.values()))

    def _referred(self, reference: Any) -> Any:
        """What a reference leads to.

        Raises:
            Rejected: the registry has lost it.
        """
        try:
            with self._request():
                return self._client.get_version(reference.subject, reference.version, deleted=True).schema
        except SchemaRegistryError as error:
            where = f"version {reference.version} of {reference.subject}"
            if error.error_code in (_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA):
                raise Rejected(f"it refers to {where}, which the registry does not have") from error
            raise Unavailable(f"{self._name} does not give {where}: {error}") from error
