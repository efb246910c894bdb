"""kafka-python and aiokafka log in over SASL_SSL and meet access control: they set rights, and name what is missing."""

import asyncio
import json
import warnings

import pytest

import certificates
from millstream.cli.__main__ import main
from millstream.testing.process import Broker

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of what kafka-python does when it is imported
    import aiokafka
    import kafka
    from aiokafka import TopicPartition
    from aiokafka import errors as aio
    from aiokafka.helpers import create_ssl_context
    from kafka import errors
    from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern
    from kafka.admin import ResourceType as Resource

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
WORDS = {"admin": "word-of-admin-1", "alice": "word-of-alice-2"}
MECHANISMS = {"kafka-python": "SCRAM-SHA-512", "aiokafka": "PLAIN"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys")
    settings = {
        "listener.security.protocol.map": "S:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "ssl.keystore.location": str(certificates.write(keys, "broker", hosts=certificates.HOSTS)),
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": 20,
    }
    with Broker(None, settings, listen="S://127.0.0.1:0", shards=2) as started:
        started.at = json.loads((started.data_dir / "broker.json").read_text())["listeners"]["S"]
        started.ca = str(keys / "ca.pem")
        for user, word in WORDS.items():
            file = keys / "word"
            file.write_text(word)
            assert main(["user", "create", user, "--password-file", str(file), "--data", str(started.data_dir)]) == 0
        yield started


def login(broker, client, user):
    trusted = {"ssl_cafile": broker.ca}
    return {
        "bootstrap_servers": broker.at,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": MECHANISMS[client],
        "sasl_plain_username": user,
        "sasl_plain_password": WORDS[user],
    } | (trusted if client == "kafka-python" else {"ssl_context": create_ssl_context(cafile=broker.ca)})


def allowed(operation, kind, name):
    return ACL("User:alice", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name))


def of(operation, kind, name):
    return ACLFilter("User:alice", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name))


@pytest.fixture(scope="module")
def admin(broker):
    found = KafkaAdminClient(**login(broker, "kafka-python", "admin"))
    found.create_topics({"orders": {"num_partitions": 1, "replication_factor": 1}})
    yield found
    found.close()


@pytest.fixture
def grant(admin):
    given = []

    def allow(*acl):
        assert admin.create_acls([allowed(*acl)])["failed"] == []
        given.append(acl)

    yield allow
    for acl in given:
        admin.delete_acls([of(*acl)])


def test_kafka_python_sets_rights_and_names_those_that_are_missing(broker, admin, grant):
    options = login(broker, "kafka-python", "alice")
    with pytest.raises(errors.TopicAuthorizationFailedError):
        send(options)
    grant(ACLOperation.WRITE, Resource.TOPIC, "orders")
    assert send(options).offset >= 0
    consumer = kafka.KafkaConsumer(**options, group_id="readers", auto_offset_reset="earliest")
    consumer.subscribe(["orders"])
    with pytest.raises(errors.GroupAuthorizationFailedError):
        read_one(consumer)
    grant(ACLOperation.READ, Resource.GROUP, "readers")
    grant(ACLOperation.READ, Resource.TOPIC, "orders")
    assert read_one(consumer)
    consumer.close()
    alice = KafkaAdminClient(**options)
    (failure,) = alice.create_acls([allowed(ACLOperation.ALL, Resource.TOPIC, "orders")])["failed"]
    alice.close()
    assert failure is errors.ClusterAuthorizationFailedError


def send(options):
    producer = kafka.KafkaProducer(**options)
    try:
        return producer.send("orders", b"one").get(60)
    finally:
        producer.close(timeout=0)


def read_one(consumer):
    while True:
        for records in consumer.poll(1000).values():
            return records[0].value


def test_aiokafka_names_the_rights_that_are_missing(broker, admin, grant):
    async def produce(**more):
        producer = aiokafka.AIOKafkaProducer(**login(broker, "aiokafka", "alice"), **more)
        try:
            await producer.start()
            if not more:
                return (await producer.send_and_wait("orders", b"two")).offset
            async with producer.transaction():
                return (await producer.send_and_wait("orders", b"three")).offset
        finally:
            await producer.stop()

    async def read(group):
        more = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = aiokafka.AIOKafkaConsumer("orders", **login(broker, "aiokafka", "alice"), **more)
        try:
            await consumer.start()
            found = await consumer.getone()
            await consumer.commit({TopicPartition("orders", 0): found.offset + 1})
            return found.value
        finally:
            await consumer.stop()

    with pytest.raises(aio.TopicAuthorizationFailedError):
        asyncio.run(produce())
    grant(ACLOperation.WRITE, Resource.TOPIC, "orders")
    assert asyncio.run(produce()) >= 0
    with pytest.raises(aio.TransactionalIdAuthorizationFailed):
        asyncio.run(produce(transactional_id="billing"))
    grant(ACLOperation.WRITE, Resource.TRANSACTIONAL_ID, "billing")
    assert asyncio.run(produce(transactional_id="billing")) >= 0
    grant(ACLOperation.READ, Resource.TOPIC, "orders")
    with pytest.raises(aio.GroupAuthorizationFailedError):
        asyncio.run(read("others"))
    grant(ACLOperation.READ, Resource.GROUP, "others")
    assert asyncio.run(read("others"))


@pytest.mark.parametrize("client", MECHANISMS)
def test_a_wrong_password_is_named(broker, client):
    options = {**login(broker, client, "alice"), "sasl_plain_password": "word-of-another"}

    async def start():
        producer = aiokafka.AIOKafkaProducer(**options)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises((errors.KafkaError, aio.KafkaError)) as failure:
        if client == "aiokafka":
            asyncio.run(start())
        else:
            kafka.KafkaAdminClient(**options, bootstrap_timeout_ms=5000)
    assert "word-of-another" not in str(failure.value)
