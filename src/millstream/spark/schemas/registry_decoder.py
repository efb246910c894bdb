"""The decoder that a subject's schema needs, and the columns of a schema of any format."""

from millstream.errors import Rejected
from millstream.spark.fitting import Member
from millstream.spark.schemas.avro_decoder import AvroDecoder, avro_members
from millstream.spark.schemas.decoded import WireDecoder
from millstream.spark.schemas.json_decoder import JsonSchemaDecoder, json_members
from millstream.spark.schemas.protobuf_decoder import ProtobufDecoder, first_message, protobuf_members
from millstream.spark.schemas.source import Resolved, SchemaSource


def registry_decoder(source: SchemaSource, subject: str, *, stop_at_boundary: bool = True) -> WireDecoder:
    """A decoder whose reader schema is the latest version of ``subject`` as it is now.

    Args:
        source: where schemas are asked for.
        subject: such as ``orders-value``.
        stop_at_boundary: stop before records with more than the reader schema has; False drops what is more.

    Raises:
        Rejected: there is no such subject, or its schema is not valid.
    """
    reader = source.latest(subject)
    match reader.schema.type:
        case "AVRO":
            return AvroDecoder(source, reader, stop_at_boundary=stop_at_boundary)
        case "PROTOBUF":
            return ProtobufDecoder(source, reader, stop_at_boundary=stop_at_boundary)
        case "JSON":
            return JsonSchemaDecoder(source, reader, stop_at_boundary=stop_at_boundary)


def members_of(reader: Resolved, message: str | None) -> tuple[Member, ...]:
    """The columns of a schema; of a Protobuf schema those of ``message``, by default the first one.

    Raises:
        Rejected: the schema is not valid, or has no such message.
    """
    match reader.schema.type:
        case "AVRO":
            return avro_members(reader)
        case "PROTOBUF":
            return protobuf_members(reader, message or first_message(reader))
        case "JSON":
            return json_members(reader)


def message_of(source: SchemaSource, reader: Resolved, message: str | None) -> str:
    """The full name of the message that columns are of.

    Args:
        source: asked for the oldest version of the subject.
        reader: its latest version.
        message: the declared name, None without one.

    Raises:
        Rejected: the schema is not valid, or has no such message.
    """
    if message is None and (first := source.first(reader.subject)) is not None:
        try:
            message = first_message(first)
            protobuf_members(reader, message)
        except Rejected:
            message = None
    message = message or first_message(reader)
    protobuf_members(reader, message)
    return message
