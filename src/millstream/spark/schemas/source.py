"""Where decoders get schemas from: a registry, asked once for each id.

Ids never change their schema, so an answer is kept for ever. A registry that cannot be reached is an error of the whole
batch (``Unavailable``), because it says nothing about a record; an id that the registry does not know is an error of
the records that carry it.
"""

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
_NO_SCHEMA: Final = 40403


class Resolved(msgspec.Struct, frozen=True):
    """A schema with everything that it refers to, each before what uses it."""

    schema: Schema
    references: tuple[Named, ...] = ()


class SchemaSource(Protocol):
    """Schemas by id, and the latest one of a subject."""

    def by_id(self, schema_id: int) -> Resolved | None:
        """The schema of an id, None if there is none.

        Raises:
            Unavailable: nobody can be asked.
        """
        ...

    def latest(self, subject: str) -> Resolved:
        """The latest version of a subject.

        Raises:
            Rejected: there is no such subject.
            Unavailable: nobody can be asked.
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
        self._by_id: dict[int, Resolved | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Connections stay; the copy makes its own."""
        return RegistrySchemas, (self._conf,)

    def by_id(self, schema_id: int) -> Resolved | None:
        """See ``SchemaSource``."""
        if schema_id not in self._by_id:
            try:
                with self._request():
                    self._by_id[schema_id] = self._resolved(self._client.get_schema(schema_id))
            except SchemaRegistryError as error:
                if error.error_code != _NO_SCHEMA:  # also whatever is no registry and answers 404
                    raise Unavailable(f"{self._name} does not give id {schema_id}: {error}") from error
                return None  # it may come
        return self._by_id[schema_id]

    def latest(self, subject: str) -> Resolved:
        """See ``SchemaSource``."""
        try:
            with self._request():
                return self._resolved(self._client.get_latest_version(subject).schema)
        except SchemaRegistryError as error:
            if error.error_code == _NO_SUBJECT:
                raise Rejected(
                    f"{self._name} has no subject {subject}; 'millstream schema register {subject} FILE' makes it"
                ) from None
            raise Unavailable(f"{self._name} does not give {subject}: {error}") from error

    @property
    def _name(self) -> str:
        return f"the schema registry at {self._conf.get('url')}"

    @contextmanager
    def _request(self) -> Generator[None]:
        """Around a request: whatever the client's HTTP library says of a connection is ``Unavailable``."""
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
                    target = self._client.get_version(reference.subject, reference.version, deleted=True).schema
                    references[reference.name] = Named(reference.name, visit(target))
            kind = held.schema_type or "AVRO"
            if kind not in SCHEMA_TYPES:
                raise Rejected(f"schemas of type {kind} are not known")
            return Schema(held.schema_str, kind)

        schema = visit(found)
        return Resolved(schema, tuple(references.values()))
