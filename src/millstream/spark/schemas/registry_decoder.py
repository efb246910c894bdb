"""The decoder that a subject's schema needs."""

from millstream.spark.schemas.avro_decoder import AvroDecoder
from millstream.spark.schemas.decoded import WireDecoder
from millstream.spark.schemas.json_decoder import JsonSchemaDecoder
from millstream.spark.schemas.protobuf_decoder import ProtobufDecoder
from millstream.spark.schemas.source import SchemaSource


def registry_decoder(source: SchemaSource, subject: str, *, stop_at_boundary: bool = True) -> WireDecoder:
    """A decoder whose reader schema is the latest version of ``subject`` as it is now.

    Args:
        source: where schemas are asked for.
        subject: such as ``orders-value``.
        stop_at_boundary: stop before records with more than the reader schema has; False drops what is more.

    Raises:
        Rejected: there is no such subject, or its schema has no columns.
    """
    reader = source.latest(subject)
    match reader.schema.type:
        case "AVRO":
            return AvroDecoder(source, reader, stop_at_boundary=stop_at_boundary)
        case "PROTOBUF":
            return ProtobufDecoder(source, reader, stop_at_boundary=stop_at_boundary)
        case "JSON":
            return JsonSchemaDecoder(source, reader, stop_at_boundary=stop_at_boundary)
