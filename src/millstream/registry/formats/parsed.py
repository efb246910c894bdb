"""What the registry wants to know of a schema, in any format."""

from typing import Protocol

import msgspec

from millstream.registry.model import Schema


class InvalidSchema(ValueError):
    """A text is no schema of its format, or a schema that it refers to is missing. The message is for its author."""


class Named(msgspec.Struct, frozen=True):
    """A schema that another one refers to, under the name that the other one uses."""

    name: str
    schema: Schema


class Parsed(Protocol):
    """A valid schema.

    ``text`` is what is stored and answered. Two schemas are the same if their ``identity`` is; with the request's
    ``normalize``, if their ``normalized`` texts have the same identity.
    """

    @property
    def text(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def normalized(self) -> str: ...

    def differences(self, writer: "Parsed") -> list[str]:
        """Why a reader with this schema cannot read what was written with ``writer``; empty if it can."""
        ...
