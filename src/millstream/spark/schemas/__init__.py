"""Records in Confluent's wire format to typed Arrow columns, batch by batch.

::

    from millstream.spark.schemas import RegistrySchemas, registry_decoder

    schemas = RegistrySchemas({"url": "http://broker:9644"})
    decoder = registry_decoder(schemas, "orders-value")     # the reader schema is the latest, from now on
    decoded = decoder.decode(values)                        # values: pa.BinaryArray
    decoded.columns, decoded.errors, decoded.boundary

Each record is read with the schema that it was written with and comes out as the reader schema has it. A record that
does not decode is a null row with its reason in ``errors``. Where a record was written with a newer version that has
more than the reader schema has, decoding stops before it and says so in ``boundary``: who makes the table wider and
takes a new decoder continues there and loses nothing. ``columns_of`` fits a reader schema to the columns of a table.
"""

try:
    from millstream.spark.schemas.avro_decoder import AvroDecoder
    from millstream.spark.schemas.decoded import Boundary, Decoded, columns_of
    from millstream.spark.schemas.json_decoder import JsonSchemaDecoder
    from millstream.spark.schemas.protobuf_decoder import ProtobufDecoder
    from millstream.spark.schemas.registry_decoder import members_of, message_of, registry_decoder
    from millstream.spark.schemas.source import RegistrySchemas, Resolved, SchemaSource
except ModuleNotFoundError as missing:
    if (missing.name or "").startswith("millstream"):
        raise
    from millstream.errors import how_to_install

    needed = (missing.name or "a package").partition(".")[0]
    sentence = f"millstream.spark.schemas needs {needed}, which is not installed: {how_to_install('schemas,spark')}"
    raise ModuleNotFoundError(sentence, name=missing.name) from None

__all__ = [
    "AvroDecoder",
    "Boundary",
    "Decoded",
    "JsonSchemaDecoder",
    "ProtobufDecoder",
    "RegistrySchemas",
    "Resolved",
    "SchemaSource",
    "columns_of",
    "members_of",
    "message_of",
    "registry_decoder",
]
