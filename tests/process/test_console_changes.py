"""Changes through the console against a real broker: each is previewed, confirmed, and seen by a stock client."""

import re
from html import unescape

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from millstream.console.application import create
from millstream.console.changes import partition_of
from millstream.console.settings import Settings

pytestmark = pytest.mark.process

OWN = {"Origin": "http://localhost"}


class Visitor:
    """A browser as far as forms go."""

    def __init__(self, bootstrap):
        self.application = create(Settings(bootstrap))
        self.client = self.application.test_client()
        page = self.client.get("/").text
        self.token = re.search(r'name="token" value="([^"]+)"', page)[1]

    def send(self, path, step, **fields):
        data = {"token": self.token, "step": step, **fields}
        return self.client.post(path, data=data, headers=OWN)

    def confirm(self, path, *, between=None, typed=None, **fields):
        """Ask for the preview, and send the form that it has; the preview if it has none."""
        preview = self.send(path, "preview", **fields)
        form = next(
            (form for form in re.findall(r"<form.*?</form>", preview.text, re.DOTALL) if 'value="do"' in form), None
        )
        if form is None:
            return preview
        if between is not None:
            between()
        found = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
        found |= {
            name: unescape(value)
            for name, value in re.findall(r'<textarea name="(\w+)" hidden>\n(.*?)</', form, re.DOTALL)
        }
        if typed is not None:
            found["typed"] = typed
        return self.client.post(path, data=found, headers=OWN)


@pytest.fixture(scope="module")
def visitor(broker):
    found = Visitor(broker.bootstrap)
    yield found
    found.application.extensions["console"].close()


@pytest.fixture(scope="module")
def admin(broker):
    return AdminClient(broker.client)


def filled(broker, count=10, partitions=1):
    topic = broker.new_topic(partitions=partitions)
    producer = Producer(broker.client)
    for number in range(count):
        producer.produce(topic, f"v{number}", key=f"k{number}", partition=number % partitions)
    producer.flush()
    return topic


def read(broker, topic, partition=0):
    consumer = Consumer({**broker.client, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while not (message := consumer.poll(60)).error():
        found.append(message)
    consumer.close()
    return found


def ends(broker, topic, partition=0):
    consumer = Consumer({**broker.client, "group.id": "reader"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
    finally:
        consumer.close()


def test_a_topic_is_previewed_created_cloned_and_deleted(broker, visitor, admin):
    name = f"made-{broker.new_topic()}"
    fields = {"name": name, "partitions": "2", "properties": "retention.ms=60000\n# a remark\n"}
    preview = visitor.send("/new-topic", "preview", **fields)
    assert "This would be created" in preview.text
    assert name not in admin.list_topics(timeout=60).topics
    assert visitor.confirm("/new-topic", **fields).status_code == 303
    assert f"The topic {name} was created." in visitor.client.get(f"/topics/{name}/messages").text
    assert len(admin.list_topics(timeout=60).topics[name].partitions) == 2

    form = visitor.client.get(f"/new-topic?like={name}").text
    assert "retention.ms=60000" in form
    assert 'name="partitions" value="2"' in form

    assert "cannot be brought back" in visitor.send(f"/topics/{name}/delete", "preview").text
    assert visitor.confirm(f"/topics/{name}/delete", typed="another").status_code == 400
    assert name in admin.list_topics(timeout=60).topics
    assert visitor.confirm(f"/topics/{name}/delete", typed=name).status_code == 303
    assert name not in admin.list_topics(timeout=60).topics


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "no/slash"}, "INVALID_TOPIC"),
        ({"name": "x", "partitions": "0"}, "INVALID_PARTITIONS"),
        ({"name": "x", "properties": "no.such=1"}, "no.such"),
        ({"name": "x", "properties": "wrong line"}, "is not name=value"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(visitor, fields, said):
    answer = visitor.send("/new-topic", "preview", **fields)
    assert answer.status_code == 400
    assert said in unescape(answer.text)


def test_a_property_is_changed_and_goes_back_to_its_default(broker, visitor, admin):
    topic = broker.new_topic()

    def value():
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return admin.describe_configs([resource])[resource].result()["retention.ms"].value

    default = value()
    path = f"/topics/{topic}/property"
    preview = visitor.send(path, "preview", name="retention.ms", value="1000")
    assert f"from “{default}” to “1000”" in preview.text
    assert value() == default
    assert visitor.confirm(path, name="retention.ms", value="1000").status_code == 303
    assert value() == "1000"
    assert visitor.confirm(path, name="retention.ms", value="soon").status_code == 400
    assert visitor.confirm(path, name="retention.ms", remove="1").status_code == 303
    assert value() == default


def test_partitions_are_added_and_never_taken_away(broker, visitor, admin):
    topic = broker.new_topic()
    assert "2 partitions more" in visitor.send(f"/topics/{topic}/partitions", "preview", total="3").text
    assert visitor.confirm(f"/topics/{topic}/partitions", total="3").status_code == 303
    assert len(admin.list_topics(timeout=60).topics[topic].partitions) == 3
    assert visitor.confirm(f"/topics/{topic}/partitions", total="2").status_code == 400


def test_records_are_deleted_before_a_position(broker, visitor):
    topic = filled(broker)
    preview = visitor.send(f"/topics/{topic}/trim", "preview", to="4")
    assert "4 records are deleted" in preview.text
    assert ends(broker, topic) == (0, 10)
    assert visitor.confirm(f"/topics/{topic}/trim", to="4").status_code == 303
    assert ends(broker, topic) == (4, 10)
    assert visitor.confirm(f"/topics/{topic}/trim", to="2").status_code == 400

    def one_more():
        producer = Producer(broker.client)
        producer.produce(topic, "arrived between the preview and its confirmation")
        producer.flush()

    assert visitor.confirm(f"/topics/{topic}/trim", to="newest", between=one_more).status_code == 303
    assert ends(broker, topic) == (10, 11)


def test_a_record_is_sent_and_sent_again_as_the_same_bytes(broker, visitor):
    topic = broker.new_topic()
    producer = Producer(broker.client)
    odd = [(b"\xff\0", "text\r\nof lines"), ("", None), (None, b""), ("key", '\n{"a": "ü"}')]
    for key, value in odd:
        producer.produce(topic, value, key=key, headers=[("h", b"\x80"), ("none", None)])
        producer.flush()
    for offset in range(len(odd)):
        page = visitor.client.get(f"/topics/{topic}/produce?partition=0&offset={offset}").text
        areas = dict(re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL))
        fields = {name: unescape(text).replace("\n", "\r\n") for name, text in areas.items()}
        fields |= dict.fromkeys(re.findall(r'type="checkbox" name="(\w+)" value="1" checked', page), "1")
        fields["form"] = re.search(r'<option value="(\w+)" selected', page)[1]
        assert visitor.send(f"/topics/{topic}/produce", "", to="0", **fields).status_code == 303, offset
    found = [(one.key(), one.value(), one.headers()) for one in read(broker, topic)]
    assert len(found) == 2 * len(odd)
    assert found[len(odd) :] == found[: len(odd)]


def test_a_key_decides_the_partition_as_for_javas_producer(broker, visitor):
    topic = broker.new_topic(partitions=5)
    known = Producer({**broker.client, "partitioner": "murmur2"})
    places = []
    for number in range(8):
        known.produce(topic, "x", key=f"k{number}", on_delivery=lambda _, sent: places.append(sent.partition()))
        known.flush()
    assert places == [partition_of(f"k{number}".encode(), 5) for number in range(8)]
    assert visitor.send(f"/topics/{topic}/produce", "", key="k1", value="y", form="text").status_code == 303
    assert b"y" in [one.value() for one in read(broker, topic, places[1])]


def test_offsets_of_a_group_are_reset_after_a_look(broker, visitor):
    topic, group = filled(broker, 10, 2), "to be reset"

    def committed():
        consumer = Consumer({**broker.client, "group.id": group})
        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=60)
        consumer.close()
        return [place.offset for place in found]

    consumer = Consumer({**broker.client, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 5)], asynchronous=False)
    consumer.close()
    preview = visitor.send("/group/reset", "preview", id=group, to="3")
    assert "These offsets would change" in preview.text
    assert committed() == [5, 5]
    assert visitor.confirm("/group/reset", id=group, topic=topic, to="oldest").status_code == 303
    assert committed() == [0, 0]
    assert visitor.confirm("/group/reset", id=group, to="soon").status_code == 400
    assert "is deleted with its offsets" in visitor.send("/group/delete", "preview", id=group).text
    assert visitor.confirm("/group/delete", id=group).status_code == 303
    assert visitor.client.get("/group", query_string={"id": group}).status_code == 404


def test_a_group_with_members_is_not_reset(broker, visitor):
    topic, group = filled(broker), f"busy {broker.new_topic()}"
    consumer = Consumer({**broker.client, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.poll(60).value() == b"v0"
    consumer.commit(asynchronous=False)
    refused = visitor.confirm("/group/reset", id=group, to="newest")
    assert refused.status_code == 400
    consumer.close()


def test_a_setting_of_a_broker_is_changed_live(visitor, admin):
    resource = ConfigResource(ConfigResource.Type.BROKER, "0")

    def value():
        return admin.describe_configs([resource])[resource].result()["log.retention.ms"].value

    before = value()
    fields = {"broker": "0", "name": "log.retention.ms"}
    assert "12345678" in visitor.send("/settings/change", "preview", value="12345678", **fields).text
    assert value() == before
    assert visitor.confirm("/settings/change", value="12345678", **fields).status_code == 303
    assert value() == "12345678"
    assert visitor.confirm("/settings/change", remove="1", **fields).status_code == 303
    assert value() == before


def test_a_read_only_console_changes_nothing(broker):
    application = create(Settings(broker.bootstrap, read_only=True))
    client = application.test_client()
    topic = broker.new_topic()
    page = client.get(f"/topics/{topic}/messages").text
    token = re.search(r'name="token" value="([^"]+)"', page)[1]
    assert "/change" not in page
    assert "/produce" not in page
    for path in (
        "/new-topic",
        f"/topics/{topic}/delete",
        f"/topics/{topic}/produce",
        "/group/reset",
        "/settings/change",
    ):
        answer = client.post(path, data={"token": token, "step": "do", "typed": topic, "name": "x"}, headers=OWN)
        assert answer.status_code in (404, 405), path
    application.extensions["console"].close()
