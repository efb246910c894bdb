"""The console with a broker's schema registry: decoded records, subjects, versions, and what changed between them."""

import json
import re
import struct
import urllib.request
from html import unescape

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2

from millstream.console.application import create
from millstream.console.settings import Settings

pytestmark = pytest.mark.process

MONEY = {"type": "record", "name": "Money", "fields": [{"name": "amount", "type": "double"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "total", "type": "Money"}],
}


@pytest.fixture(scope="module")
def console(broker):
    application = create(Settings(broker.bootstrap, registry=broker.http))
    yield application.test_client()
    application.extensions["console"].close()


def register(broker, subject, schema, kind="AVRO", references=()):
    body = json.dumps({"schema": schema, "schemaType": kind, "references": list(references)}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{broker.http}/subjects/{subject}/versions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["id"]


def send(broker, topic, *values):
    producer = Producer(broker.client)
    for value in values:
        producer.produce(topic, value)
    producer.flush()


def shown(console, topic):
    page = console.get(f"/topics/{topic}/messages?from=oldest").text
    values = [unescape(text) for text in re.findall(r"<h3>Value.*?</h3><pre>(.*?)</pre>", page, re.DOTALL)]
    return page, values


def test_records_of_stock_serializers_are_decoded(broker, console, registry_of):
    topic = broker.new_topic()
    registry = registry_of(broker.http)
    context = SerializationContext(topic, MessageField.VALUE)
    avro = AvroSerializer(registry, json.dumps(MONEY), conf={"subject.name.strategy": lambda *_: f"{topic}-a"})
    schema = json.dumps({"type": "object", "title": "T", "properties": {"n": {"type": "integer"}}})
    jsons = JSONSerializer(schema, registry, conf={"subject.name.strategy": lambda *_: f"{topic}-j"})
    conf = {"use.deprecated.format": False, "subject.name.strategy": lambda *_: f"{topic}-p"}
    protobuf = ProtobufSerializer(timestamp_pb2.Timestamp, registry, conf=conf)
    sent = [
        avro({"amount": 2.5}, context),
        jsons({"n": 7}, context),
        protobuf(timestamp_pb2.Timestamp(seconds=90), context),
    ]
    send(broker, topic, *sent)
    page, values = shown(console, topic)
    assert [json.loads(values[0]), json.loads(values[1])] == [{"amount": 2.5}, {"n": 7}]
    assert values[2] == '"1970-01-01T00:01:30Z"'
    assert re.findall(r'<span class="tag on">(\w+)</span>', page) == ["avro", "json", "protobuf"]
    filtered = console.get(f"/topics/{topic}/messages", query_string={"filter": "value.amount > 2"}).text
    assert filtered.count('<details class="message"') == 1
    lines = [json.loads(line) for line in console.get(f"/topics/{topic}/export?from=oldest").text.splitlines()]
    assert lines[0]["value"] == {"amount": 2.5}


def test_a_schema_that_refers_to_another_decodes(broker, console):
    topic = broker.new_topic()
    register(broker, f"{topic}-money", json.dumps(MONEY))
    reference = {"name": "Money", "subject": f"{topic}-money", "version": 1}
    schema_id = register(broker, f"{topic}-value", json.dumps(ORDER), references=[reference])
    payload = b"\0" + schema_id.to_bytes(4, "big") + b"\x0e" + struct.pack("<d", 4.5)
    send(broker, topic, payload)
    _, values = shown(console, topic)
    assert json.loads(values[0]) == {"id": 7, "total": {"amount": 4.5}}


def test_what_does_not_decode_is_shown_as_it_is_with_the_reason(broker, console):
    topic = broker.new_topic()
    schema_id = register(broker, f"{topic}-value", json.dumps(MONEY))
    endless = {"type": "array", "items": "null"}
    endless_id = register(broker, f"{topic}-endless", json.dumps(endless))
    prefix = b"\0" + schema_id.to_bytes(4, "big")
    claim = b"\0" + endless_id.to_bytes(4, "big") + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    send(broker, topic, prefix + b"\x01", b"\0\x7f\xff\xff\xff\x01", claim)
    page = unescape(console.get(f"/topics/{topic}/messages?from=oldest").text)
    assert f"schema {schema_id}: the payload does not fit it" in page
    assert "schema 2147483647: the schema registry says" in page
    assert f"schema {endless_id}: it has arrays of items that take no bytes" in page


def test_subjects_and_versions_are_compared(broker, console):
    subject = f"{broker.new_topic()}-value"
    register(broker, subject, json.dumps(MONEY))
    more = {**MONEY, "fields": [*MONEY["fields"], {"name": "currency", "type": "string", "default": "EUR"}]}
    register(broker, subject, json.dumps(more))
    listed = console.get(f"/schemas?q={subject}").text
    assert subject in listed
    page = console.get(f"/schema?name={subject}&version=2&against=1").text
    added = re.findall(r'<span class="add">(.*?)</span>', page)
    assert any("currency" in unescape(line) for line in added)
    assert '<span class="cut">' not in page or "currency" not in "".join(
        re.findall(r'<span class="cut">(.*?)</span>', page)
    )
    assert console.get("/schema?name=no-such-subject").status_code == 400


def test_a_registry_that_does_not_answer_is_a_page(broker):
    application = create(Settings(broker.bootstrap, registry="http://127.0.0.1:9"))
    answer = application.test_client().get("/schemas")
    application.extensions["console"].close()
    assert answer.status_code == 503
    assert "no schema registry answers at http://127.0.0.1:9" in answer.text
