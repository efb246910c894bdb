"""Spark's reader and writer against a broker that takes TLS only."""

import pytest
from confluent_kafka import Producer

from millstream.testing import broker

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
