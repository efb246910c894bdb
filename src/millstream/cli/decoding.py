"""Values with schema ids as JSON, for ``millstream consume --decode``.

The decoders are those of ``millstream.spark.schemas``: Avro, JSON Schema and Protobuf, to the columns of the subject's
latest version. Fields that only other versions have are left out. A record that does not decode is shown as it is, and
the first reason of each topic goes to stderr; a topic without a subject is shown as it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from millstream.cli.failure import CommandFailed
from millstream.cli.output import remark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.cli.records import Message
    from millstream.client.schema_registry import RegistryAccess

_SUBJECT: Final = "{topic}-value"


class DecodedMessage:
    """A record whose value is JSON text; everything else is the record's."""

    def __init__(self, message: Message, document: Any) -> None:
        self._message = message
        self.document = document

    def value(self) -> bytes:
        return json.dumps(self.document, ensure_ascii=False, default=str).encode()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class Decoding:
    """Decodes the records of topics. A decoder is made when a topic's first record comes."""

    def __init__(self, registry: RegistryAccess) -> None:
        self._registry = registry
        self._decoders: dict[str, Any] = {}
        self._reported: set[str] = set()

    def decoded(self, messages: Sequence[Message]) -> list[Message]:
        """The records in their order, those that decode with JSON as their value. Raises CommandFailed if the registry
        does not answer.
        """
        shown = list(messages)
        places: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            if message.value() is not None:
                places.setdefault(message.topic() or "", []).append(place)
        for topic, chosen in places.items():
            decoder = self._decoder(topic)
            if decoder is not None:
                self._decode(topic, decoder, chosen, shown)
        return shown

    def _decode(self, topic: str, decoder: Any, places: list[int], shown: list[Message]) -> None:
        import pyarrow as pa

        from millstream.errors import MillstreamError

        try:
            found = decoder.decode(pa.array([shown[place].value() for place in places], pa.binary()))
        except MillstreamError as error:
            raise CommandFailed(f"{self._registry.url}: {error.message}") from None
        rows, errors = found.columns.to_pylist(), found.errors.to_pylist()
        for place, row, error in zip(places, rows, errors, strict=True):
            if error is None:
                shown[place] = DecodedMessage(shown[place], row)  # type: ignore[call-overload]
            elif topic not in self._reported:
                self._reported.add(topic)
                where = f"{topic}, partition {shown[place].partition()}, offset {shown[place].offset()}"
                remark(f"{where}: {error}; it is shown as it is, and so are others of the topic")

    def _decoder(self, topic: str) -> Any:
        if topic not in self._decoders:
            from millstream.errors import MillstreamError, Rejected
            from millstream.spark.schemas import RegistrySchemas, registry_decoder

            subject = _SUBJECT.format(topic=topic)
            try:
                self._decoders[topic] = registry_decoder(
                    RegistrySchemas(self._registry), subject, stop_at_boundary=False
                )
            except Rejected as error:
                self._decoders[topic] = None
                remark(f"values of topic '{topic}' are shown as they are: {error.message}")
            except MillstreamError as error:
                raise CommandFailed(f"{self._registry.url}: {error.message}") from None
        return self._decoders[topic]
