"""The schema registry of a running broker: Confluent's own client, what is stored, crashes, bad requests."""

import contextlib
import http.client
import json
import signal
import urllib.parse

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2

pytestmark = pytest.mark.process

AVRO = json.dumps({"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]})
AVRO2 = json.dumps(
    {
        "type": "record",
        "name": "User",
        "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int", "default": 0}],
    }
)
JSON = json.dumps({"title": "User", "type": "object", "properties": {"name": {"type": "string"}}})


def order_class():
    """A message class as protoc generates it: with an import, a map and a nested message behind the map's."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    text_format.Parse(
        """name: "Order"
        field { name: "counts" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".shop.Order.CountsEntry" }
        field { name: "line" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Order.Line" }
        field { name: "at" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
        nested_type {
            name: "CountsEntry" options { map_entry: true }
            field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
            field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 }
        }
        nested_type { name: "Line" field { name: "item" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING } }""",
        file.message_type.add(),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def request(broker, method, path, body=None, headers=None):
    parts = urllib.parse.urlsplit(broker.http)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def registry_process(broker):
    return next(p for p in psutil.Process(broker.pid).children() if "registry" in " ".join(p.cmdline()))


def stored(broker):
    """Keys and values of ``_schemas``."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([TopicPartition("_schemas", 0, 0)])
    found = []
    with contextlib.closing(consumer):
        while (message := consumer.poll(60)) is not None and message.error() is None:
            found.append((message.key(), message.value()))
    assert message is not None and message.error().code() == KafkaError._PARTITION_EOF
    return found


def test_confluents_serializers_work_unchanged(start_broker, registry_of):
    broker = start_broker()
    client = registry_of(broker.http)
    context = SerializationContext("users", MessageField.VALUE)

    data = AvroSerializer(client, AVRO)({"name": "Ann"}, context)
    assert data[:1] == b"\0"
    assert AvroDeserializer(client)(data, context) == {"name": "Ann"}

    context = SerializationContext("people", MessageField.VALUE)
    data = JSONSerializer(JSON, client)({"name": "Bob"}, context)
    assert JSONDeserializer(JSON, schema_registry_client=client)(data, context) == {"name": "Bob"}

    order_type = order_class()
    context = SerializationContext("orders", MessageField.VALUE)
    order = order_type(line=order_type.Line(item="tea"), counts={"tea": 2})
    order.at.seconds = 7
    for kind, value in ((order_type, order), (order_type.Line, order.line)):  # a nested message is named by its place
        data = ProtobufSerializer(kind, client)(value, context)
        assert ProtobufDeserializer(kind, {}, client)(data, context).SerializeToString() == value.SerializeToString()
    assert "map<string, int32> counts = 2;" in client.get_latest_version("orders-value").schema.schema_str

    assert client.get_subjects() == ["orders-value", "people-value", "users-value"]


def test_confluents_client_administers_it_through_crashes(start_broker, registry_of):
    broker = start_broker()
    client = registry_of(broker.http)
    schema, wider = Schema(AVRO, "AVRO"), Schema(AVRO2, "AVRO")
    assert client.register_schema("s", schema) == 1
    assert client.test_compatibility("s", wider)
    assert client.register_schema("s", wider) == 2
    assert client.set_compatibility("s", "FULL") == {"compatibility": "FULL"}
    assert client.get_compatibility("s") == "FULL"
    assert client.get_contexts() == ["."]
    assert client.update_mode("s", "READWRITE") == client.get_mode("s") == "READWRITE"
    assert client.lookup_schema("s", wider).version == 2
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("s", Schema('"int"', "AVRO"))
    assert refused.value.http_status_code == 409

    first, second, config = stored(broker)[:3]
    value = {
        "subject": "s",
        "version": 1,
        "id": 1,
        "schema": json.dumps(json.loads(AVRO), separators=(",", ":")),
        "deleted": False,
    }
    assert first == (
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        json.dumps(value, separators=(",", ":")).encode(),
    )
    assert second[0] == b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}'
    assert config == (b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"compatibilityLevel":"FULL"}')

    registry_process(broker).send_signal(signal.SIGKILL)  # the registry goes, the broker stays
    status, versions = request(broker, "GET", "/subjects/s/versions")
    if status == 500:  # the signal came after the look whether it lives
        status, versions = request(broker, "GET", "/subjects/s/versions")
    assert (status, versions) == (200, [1, 2])

    broker.kill()
    broker.restart()
    fresh = registry_of(broker.http)
    assert fresh.get_versions("s") == [1, 2]
    assert fresh.get_compatibility("s") == "FULL"
    assert fresh.delete_subject("s") == [1, 2]
    assert fresh.delete_subject("s", permanent=True) == [1, 2]
    assert fresh.get_subjects() == []


def test_bad_requests_are_answered_and_cost_nothing(start_broker):
    broker = start_broker()
    assert request(broker, "GET", "/subjects") == (200, [])
    assert request(broker, "POST", "/metrics", b"x")[0] == 405
    assert request(broker, "POST", "/subjects/s/versions", b"{")[0] == 400
    parts = urllib.parse.urlsplit(broker.http)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.putrequest("POST", "/subjects/s/versions")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error_code"]) == (413, 413)
    connection.close()
    quotes = json.dumps({"schema": json.dumps({"type": "string", "doc": '"' * 400_000})})
    assert request(broker, "POST", "/subjects/s/versions", quotes.encode())[1]["error_code"] == 42209
    assert request(broker, "GET", "/subjects") == (200, [])
