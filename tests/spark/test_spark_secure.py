"""Spark's reader and writer, and pipelines, against brokers that take TLS only, and a registry with users."""

import json

import pytest
from confluent_kafka import Producer
from spark_support import delta

import certificates
from millstream.cli.__main__ import main
from millstream.client.schema_registry import ask, is_registry_name, registry_access
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.runner import run
from millstream.testing import broker
from millstream.testing.process import Broker

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]


def test_topics_are_read_and_written_over_tls(spark, tmp_path):
    with broker(topics={"in": 2, "out": 1}, secure=True, shards=1) as secure:
        ca_file = tmp_path / "ca"
        ca_file.write_text(str(secure.ca_path))
        options = {
            "kafka.bootstrap.servers": secure.bootstrap,
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": f"${{file:{ca_file}}}",
        }
        producer = Producer(secure.client)
        for number in range(500):
            producer.produce("in", b"%d" % number)
        assert producer.flush(240) == 0
        read = spark.read.format("millstream").options(**options, subscribe="in").load().select("value")
        assert sorted(int(row.value) for row in read.collect()) == list(range(500))
        read.write.format("millstream").options(**options, topic="out").mode("append").save()
        written = spark.read.format("millstream").options(**options, subscribe="out").load()
        assert written.count() == 500
        wrong = {**options, "kafka.ssl.truststore.location": ""}
        with pytest.raises(Exception, match="certificate is not taken"):
            spark.read.format("millstream").options(**wrong, subscribe="in").load().count()


@pytest.mark.slow
def test_a_registry_with_users_gives_schemas_to_queries_and_pipelines(spark, tmp_path):
    """Records of a secure cluster are decoded in tasks, with a login that the driver alone knows."""
    pytest.importorskip("deltalake")
    settings = {
        "listener.security.protocol.map": "S:SASL_SSL",
        "ssl.keystore.location": certificates.write(tmp_path, "broker", hosts=certificates.HOSTS),
        "http.security.protocol": "SSL",
        "super.users": "User:admin",
    }
    (tmp_path / "word").write_text("admin-word-2207")
    (tmp_path / "user").write_text("admin:admin-word-2207")
    security = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": f"${{file:{tmp_path / 'word'}}}",
        "schema.registry.ssl.ca.location": str(tmp_path / "ca.pem"),
        "basic.auth.user.info": f"${{file:{tmp_path / 'user'}}}",
    }
    with Broker(None, settings, listen="S://127.0.0.1:0", shards=1) as secure:
        create = ["user", "create", "admin", "--password-file", str(tmp_path / "word"), "--data", str(secure.data_dir)]
        assert main(create) == 0
        url = json.loads((secure.data_dir / "broker.json").read_text())["http"]
        fields = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
        access = registry_access(url, security)
        schema_id = ask(access, "POST", "/subjects/orders-value/versions", {"schema": json.dumps(fields)})["id"]
        own = {"sasl.password": "admin-word-2207", "bootstrap.servers": secure.bootstrap}
        producer = Producer({name: text for name, text in security.items() if not is_registry_name(name)} | own)
        for number in range(50):
            producer.produce("orders", b"\0" + schema_id.to_bytes(4, "big") + bytes([2 * number]))
        assert producer.flush(240) == 0
        options = {name if is_registry_name(name) else f"kafka.{name}": text for name, text in security.items()}
        options |= {"kafka.bootstrap.servers": secure.bootstrap, "subscribe": "orders", "value.format": "avro"}
        rows = spark.read.format("millstream").options(**options, **{"schema.registry.url": url}).load().collect()
        assert sorted(row.id for row in rows) == list(range(50))
        source = Source(topic="orders", format="avro", registry=url)
        pipeline = Pipeline(
            pipeline="p", brokers=secure.bootstrap, security=security, source=source, sinks=[Sink(delta="t")]
        )
        assert run(pipeline, str(tmp_path), once=True).sinks[0].rows == 50
    assert sorted(row["id"] for row in delta(tmp_path / "t")) == list(range(50))
