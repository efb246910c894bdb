"""Validators: which events a topic accepts. A producer asks before an event enters a batch.

A validator is chosen by a JSON object that is stored with the topic, ``{"type": "default"}``, ``{"type": "schema",
"schema": {…}}`` (JSON Schema) or ``{"type": "eventbridge", "schema": {…}}`` (a pattern, see ``eventbridge``). A program
may use a callable instead: it gets metadata and size of the data, and raises, or returns False, to refuse.

A refusal is ``InvalidEvent``, with the reason. A description that makes no validator is ``InvalidDescription``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from millstream.errors import Rejected, how_to_install
from millstream.events.descriptions import InvalidDescription, choose, object_of
from millstream.events.eventbridge import compile_pattern
from millstream.model.error_code import ErrorCode

ValidatorCallable: TypeAlias = Callable[[Any, int], object]


class InvalidEvent(Rejected):
    """The validator of a topic refused an event."""

    default_code = ErrorCode.INVALID_RECORD


class Validator(Protocol):
    """Accepts events or raises ``InvalidEvent``."""

    @property
    def description(self) -> dict[str, Any]:
        """The JSON object that makes this validator again."""
        ...

    def validate(self, metadata: Any, data_bytes: int) -> None:
        """Return if an event with this metadata and as many bytes of data is accepted.

        Raises:
            InvalidEvent: it is not.
        """
        ...


class DefaultValidator:
    """Accepts every event."""

    def __init__(self, description: Mapping[str, Any] | None = None) -> None:
        self.description = dict(description or {"type": "default"})

    def validate(self, metadata: Any, data_bytes: int) -> None:
        """Return."""


class SchemaValidator:
    """Accepts metadata that match a JSON Schema; the draft is the schema's ``$schema``, 2020-12 without one."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        schema = object_of(description, "schema")
        try:
            import jsonschema
            from jsonschema.validators import validator_for
        except ImportError as error:
            raise InvalidDescription(
                f"the schema validator needs the package jsonschema: {how_to_install('events')}"
            ) from error
        chosen: Any = validator_for(schema, jsonschema.Draft202012Validator)
        try:
            chosen.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise InvalidDescription(f"no JSON Schema: {error.message}") from error
        self.description = dict(description)
        self._checker: Any = chosen(schema)

    def validate(self, metadata: Any, data_bytes: int) -> None:
        """Raises ``InvalidEvent`` with the best match of what is wrong, and where."""
        del data_bytes
        from jsonschema.exceptions import best_match

        error: Any = best_match(self._checker.iter_errors(metadata))
        if error is not None:
            raise InvalidEvent(f"metadata do not match the schema: at {error.json_path}: {error.message}")


class EventBridgeValidator:
    """Accepts metadata that match a pattern."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = dict(description)
        self._matches = compile_pattern(object_of(description, "schema"))

    def validate(self, metadata: Any, data_bytes: int) -> None:
        """Raises ``InvalidEvent`` if the metadata do not match."""
        del data_bytes
        if not self._matches(metadata):
            raise InvalidEvent("metadata do not match the pattern of the topic")


class CallableValidator:
    """Asks a callable of the program."""

    def __init__(self, accepts: ValidatorCallable) -> None:
        self.description = {"type": "callable"}
        self._accepts = accepts

    def validate(self, metadata: Any, data_bytes: int) -> None:
        """Raises ``InvalidEvent`` if the callable raises or returns False."""
        try:
            answer = self._accepts(metadata, data_bytes)
        except Exception as error:
            raise InvalidEvent(f"the validator refused the event: {error}") from error
        if answer is False:
            raise InvalidEvent("the validator refused the event")


_BY_TYPE: Mapping[str, Callable[[Mapping[str, Any]], Validator]] = {
    "default": DefaultValidator,
    "schema": SchemaValidator,
    "eventbridge": EventBridgeValidator,
}


def make_validator(wanted: Mapping[str, Any] | ValidatorCallable | Validator | None) -> Validator:
    """The validator of a description, around a callable, or itself.

    Raises:
        InvalidDescription: the description has an unknown type or lacks something.
    """
    if wanted is not None and hasattr(wanted, "validate"):
        made: Any = wanted
        return made
    if callable(wanted):
        return CallableValidator(wanted)
    return choose("validator", _BY_TYPE, wanted)
