"""Batch queries on a real broker: every record once, from files and from the tail, filters and columns as asked.

``make test`` has one of each kind; what is marked slow is run by ``make test-spark`` and by every CI run.
"""

import json
from datetime import UTC, datetime

import pytest
from spark_support import SMALL_SEGMENTS

from millstream import spark as ms
from millstream.pipeline.query_functions import builtin

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

SLOW = pytest.mark.slow


def load(spark, topic, **options):
    return spark.read.format("millstream").options(**topic.options(**options)).load()


def test_every_record_is_there_once_with_all_its_fields(spark, topic):
    before = datetime.now(UTC).replace(tzinfo=None)
    written = topic(3).produce(1000, headers=[("trace", b"1"), ("trace", None)])
    rows = load(spark, written, includeHeaders="true").collect()
    assert sorted(row.value for row in rows) == sorted(written.sent)
    assert {(row.partition, row.offset) for row in rows} == {
        (p, o) for p in range(3) for o in range(sum(row.partition == p for row in rows))
    }
    row = rows[0]
    number = int(row.value.split(b":")[0])
    assert row.key == f"key-{number % 97}".encode()
    assert (row.topic, row.timestampType) == (written.name, 0)
    assert abs((row.timestamp - before).total_seconds()) < 120
    assert [(header.key, header.value) for header in row.headers] == [("trace", b"1"), ("trace", None)]


def test_sealed_segments_are_read_from_disk_and_the_rest_from_the_broker(spark, topic, tmp_path):
    written = topic(2, segment_bytes=SMALL_SEGMENTS).produce(5000, value_bytes=1500)
    written.wait_for_sealed_segments(5)
    rows = load(spark, written, **{"stats.dir": str(tmp_path)}).select("value").collect()
    assert sorted(row.value for row in rows) == sorted(written.sent)
    stats = ms.read_stats(tmp_path)
    assert stats.rows == 5000
    assert stats.segment_rows > 2500
    assert stats.tail_rows > 0


@SLOW
def test_every_way_of_reading_gives_the_same_rows(spark, topic):
    written = topic(2, segment_bytes=SMALL_SEGMENTS).produce(3000, value_bytes=1500)
    found = [
        sorted((row.partition, row.offset, row.value) for row in load(spark, written, **options).collect())
        for options in ({"read.path": "broker"}, {"split.bytes": "500k"}, {"minPartitions": "7", "batch.rows": "100"})
    ]
    assert found[0] == found[1] == found[2]
    assert sorted(row[2] for row in found[0]) == sorted(written.sent)


@pytest.fixture(params=["true", "false"])
def pushdown(spark, request):
    """Spark's switch for handing filters to Python sources, in both positions."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, request.param)
    yield request.param
    spark.conf.set(name, before)


@SLOW
def test_one_table_used_with_several_filters_gives_each_its_rows(spark, topic, pushdown):
    written = topic(2).produce(1000)
    table = load(spark, written)
    low, high = table.where("offset < 10"), table.where("offset >= 100 AND offset < 120 AND partition = 1")
    assert {row.offset for row in low.collect()} == set(range(10))
    assert table.select("value").count() == 1000
    assert sorted(row.offset for row in high.select("offset").collect()) == list(range(100, 120))
    assert low.union(high).count() == 40
    assert table.count() == 1000


def test_filters_are_applied_while_reading_when_a_query_asks_for_that(spark, topic, tmp_path):
    written = topic(2, segment_bytes=SMALL_SEGMENTS).produce(4000, value_bytes=1500)
    everything = load(spark, written).select("partition", "offset", "timestamp").collect()
    middle = sorted(row.timestamp for row in everything)[2000]
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    try:
        options = {"filter.pushdown": "true", "stats.dir": str(tmp_path)}
        some = load(spark, written, **options).where("offset >= 1000 AND offset < 1100 AND partition = 1")
        assert sorted(row.offset for row in some.collect()) == list(range(1000, 1100))
        assert ms.read_stats(tmp_path).rows == 100
        late = load(spark, written, **{"filter.pushdown": "true"}).where(f"timestamp > timestamp'{middle}'")
        assert late.count() == sum(row.timestamp > middle for row in everything)
    finally:
        spark.conf.set(name, before)


def test_asking_for_filters_where_spark_has_them_off_is_an_error(spark, topic):
    with pytest.raises(Exception, match="filterPushdown"):
        load(spark, topic(), **{"filter.pushdown": "true"}).where("offset > 5").count()


@SLOW
def test_only_the_columns_that_are_named(spark, topic):
    written = topic().produce(100)
    table = spark.read.format("millstream").options(**written.options()).schema("offset bigint, value binary").load()
    assert table.columns == ["offset", "value"]
    assert sorted(row.value for row in table.collect()) == sorted(written.sent)


def test_from_and_to(spark, topic):
    written = topic(1).produce(100)
    name = written.name
    ends = {"startingOffsets": f'{{"{name}": {{"0": 20}}}}', "endingOffsets": f'{{"{name}": {{"0": 30}}}}'}
    assert sorted(row.offset for row in load(spark, written, **ends).collect()) == list(range(20, 30))


@SLOW
def test_sql_reads_a_topic_through_a_view(spark, topic):
    written = topic().produce(100)
    options = ", ".join(f"`{name}` '{value}'" for name, value in written.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING millstream OPTIONS ({options})")
    assert spark.sql("SELECT count(*) AS n FROM orders").collect()[0].n == 100
    spark.catalog.dropTempView("orders")


@SLOW
def test_an_empty_topic_has_no_rows(spark, topic):
    assert load(spark, topic()).count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failOnDataLos": "true"}, "did you mean failOnDataLoss"),
        pytest.param({"startingOffsets": "latest"}, "cannot start at latest", marks=SLOW),
        pytest.param({"subscribe": "no"}, "topic no does not exist; 'millstream topic create no' makes it", marks=SLOW),
        pytest.param(
            {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "500"},
            "no broker answers at 127.0.0.1:1: .*; start the broker, or correct kafka.bootstrap.servers",
            marks=SLOW,
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence(spark, topic, options, words):
    with pytest.raises(Exception, match=words) as told:
        load(spark, topic(), **options).count()
    assert "Traceback" not in str(told.value)
    assert len(str(told.value).strip().splitlines()) <= 3


def test_a_topic_that_is_missing_on_write_is_told_in_one_sentence_before_any_task(spark, topic):
    options = {"kafka.bootstrap.servers": topic().bootstrap, "topic": "no", "delivery": "at-least-once"}
    with pytest.raises(Exception, match="topic no does not exist; 'millstream topic create no' makes it") as told:
        spark.range(1).selectExpr("CAST(id AS STRING) AS value").write.format("millstream").options(**options).mode(
            "append"
        ).save()
    assert len(str(told.value).strip().splitlines()) <= 3


@SLOW
def test_a_column_of_another_type_is_refused(spark, topic):
    written = topic()
    table = spark.read.format("millstream").options(**written.options()).schema("value string").load()
    with pytest.raises(Exception, match="column 'value' is binary, not string"):
        table.count()


@SLOW
def test_values_come_as_typed_columns_with_the_reason_where_one_does_not_decode(spark, topic):
    written = topic(1).produce(10)
    options = {"value.format": "json", "value.schema": "id bigint"}
    rows = load(spark, written, **options).where("_error IS NOT NULL").select("_offset", "id", "_error").collect()
    assert sorted(row._offset for row in rows) == list(range(10))
    assert {(row.id, len(row._error) > 5) for row in rows} == {(None, True)}
    texts = load(spark, written, **{"value.format": "string"}).selectExpr("value", "_error").collect()
    assert sorted(row.value.encode() for row in texts) == sorted(written.sent)


@SLOW
def test_avro_and_protobuf_of_a_registry_are_typed_columns_in_batch_and_stream(spark, topic, tmp_path, registry_of):
    pytest.importorskip("fastavro")
    from confluent_kafka import Producer
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    from google.type import money_pb2

    avro, protobuf = topic(1), topic(1)
    registry = registry_of(avro.http)
    fields = [{"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}}]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    serializers = {
        avro.name: (AvroSerializer(registry, schema), lambda n: {"id": n, "tags": ["a", "b"][: n % 3]}),
        protobuf.name: (
            ProtobufSerializer(money_pb2.Money, registry, {"use.deprecated.format": False}),
            lambda n: money_pb2.Money(currency_code="EUR", units=n),
        ),
    }
    producer = Producer({"bootstrap.servers": avro.bootstrap, "log_level": 2})
    for name, (serialize, make) in serializers.items():
        for number in range(30):
            producer.produce(name, serialize(make(number), SerializationContext(name, MessageField.VALUE)))
        producer.produce(name, b"junk")
    assert producer.flush(60) == 0
    for written, form, column in ((avro, "avro", "id"), (protobuf, "protobuf", "units")):
        options = {"value.format": form, "schema.registry.url": avro.http}
        batch = load(spark, written, **options)
        place = tmp_path / form
        stream = spark.readStream.format("millstream").options(**written.options(startingOffsets="earliest", **options))
        sink = stream.load().writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
        sink.option("path", f"{place}/rows").trigger(availableNow=True).start().awaitTermination(600)
        for rows in (batch.collect(), spark.read.parquet(f"{place}/rows").collect()):
            assert sorted(row[column] for row in rows if row._error is None) == list(range(30))
            (bad,) = [row for row in rows if row._error is not None]
            assert (bad._value, bad._offset, bad[column]) == (b"junk", 30, None)
            if form == "avro":
                assert {row.id: row.tags for row in rows if row._error is None}[5] == ["a", "b"]


def test_rows_are_written_and_read_back(spark, topic):
    target = topic(3)
    rows = spark.range(1000).selectExpr("CAST(id % 10 AS STRING) AS key", "CAST(id AS STRING) AS value")
    options = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name}
    rows.write.format("millstream").options(**options).mode("append").save()
    back = load(spark, target).collect()
    assert sorted(int(row.value) for row in back) == list(range(1000))
    homes = {}
    for row in back:
        homes.setdefault(row.key, set()).add(row.partition)
    assert all(len(partitions) == 1 for partitions in homes.values())


def test_a_session_has_what_is_recommended_and_is_not_made_twice(spark):
    for name, value in ms.RECOMMENDED.items():
        assert spark.conf.get(name) == value
    assert ms.session("another", cores=1) is spark
    assert spark.sparkContext.master == "local[2]"


def test_checks_without_spark_know_each_of_its_functions(spark):
    names = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in names if name.isidentifier()} - builtin() == set()
