"""Options: official names in any case, values of the right form, clear words for everything else."""

from pathlib import Path

import pytest

from millstream.errors import Rejected
from millstream.spark.bounds import EARLIEST, LATEST, Bound, ending, starting, subscription
from millstream.spark.options import OPTIONS, READ, WRITE, option_table, parse_options, tell_ignored
from millstream.spark.plan import check_read_options

SERVERS = {"kafka.bootstrap.servers": "a:1"}


def read(**options):
    return parse_options({name.replace("_", "."): value for name, value in options.items()}, READ)


def test_names_are_taken_in_any_case_as_spark_hands_them_over():
    options = parse_options({"KAFKA.bootstrap.SERVERS": "a:1", "failondataloss": "False"}, READ)
    assert options["kafka.bootstrap.servers"] == "a:1"
    assert options["failOnDataLoss"] is False
    assert options.given == {"kafka.bootstrap.servers", "failOnDataLoss"}


def test_what_is_not_given_has_its_default():
    options = read()
    assert options["failOnDataLoss"] is True
    assert options["split.bytes"] == 128 << 20
    assert options["maxOffsetsPerTrigger"] is None


@pytest.mark.parametrize(
    ("name", "near"),
    [("failOnDataLos", "failOnDataLoss"), ("subscribes", "subscribe"), ("maxOffsetPerTrigger", "maxOffsetsPerTrigger")],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(name, near):
    with pytest.raises(Rejected, match=f"did you mean {near}"):
        parse_options({name: "1"}, READ)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("failOnDataLoss", "yes", "true or false"),
        ("minPartitions", "0", "above 0"),
        ("maxOffsetsPerTrigger", "many", "above 0"),
        ("split.bytes", "big", "size such as"),
        ("maxTriggerDelay", "soon", "duration such as"),
        ("startingOffsets", "first", "must be earliest or latest, or JSON such as"),
        ("startingOffsets", '{"t": 1}', "JSON such as"),
        ("assign", "[]", "JSON such as"),
        ("subscribe", " , ", "at least one topic"),
        ("startingTimestamp", "yesterday", "ms since 1970"),
        ("read.path", "disk", "auto or segments or broker"),
        ("kafka.security.protocol", "TLS", "expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(name, value, words):
    with pytest.raises(Rejected, match=words) as caught:
        parse_options({name.lower(): value}, READ)
    assert name in caught.value.message


def test_encryption_is_never_ignored():
    given = {"kafka.security.protocol": "SSL", "kafka.SSL.truststore.location": "/ca.pem"}
    found = parse_options({**SERVERS, **given}, READ)
    assert found.security.tls.truststore_location == "/ca.pem"
    assert found.ignored == ()
    with pytest.raises(Rejected, match=r"option kafka\.ssl\.trust: there is no such setting"):
        parse_options({**given, "kafka.ssl.trust": "x"}, READ)


def test_options_of_a_kafka_client_that_mean_nothing_here_are_told_in_one_line(caplog):
    given = {"kafka.receive.buffer.bytes": "1", "kafka.ssl.truststore.location": "x", "kafka.linger.ms": "5"}
    options = parse_options({**SERVERS, "subscribe": "t", **given}, READ)
    tell_ignored(options)
    tell_ignored(parse_options({**SERVERS, "subscribe": "t"}, READ))
    (line,) = [record.message for record in caplog.records]
    names = "kafka.linger.ms, kafka.receive.buffer.bytes, kafka.ssl.truststore.location"
    assert line == f"ignored, because they mean nothing to this source: {names}"
    assert parse_options({"kafka.group.id": "g", "kafka.acks": "1"}, WRITE).ignored == ("kafka.group.id",)


@pytest.mark.parametrize("name", ["kafka.auto.offset.reset", "kafka.value.deserializer", "kafka.enable.auto.commit"])
def test_options_that_the_connector_refuses_are_refused_with_the_reason(name):
    with pytest.raises(Rejected, match=f"option {name} is not supported: ."):
        parse_options({name: "x"}, READ)


def test_a_path_is_explained():
    with pytest.raises(Rejected, match="subscribe"):
        parse_options({"path": "/data"}, READ)


def test_what_is_for_writing_is_refused_when_reading_and_the_other_way_round():
    with pytest.raises(Rejected, match="writing only"):
        parse_options({"delivery": "at-least-once"}, READ)
    with pytest.raises(Rejected, match="reading only"):
        parse_options({"subscribe": "t"}, WRITE)


def test_an_alias_and_its_option_together_are_given_twice():
    with pytest.raises(Rejected, match="twice"):
        parse_options({"servers": "a:1", "kafka.bootstrap.servers": "b:1"}, READ)


@pytest.mark.parametrize(
    ("text", "size"), [("1500000", 1_500_000), ("128m", 128 << 20), ("1KiB", 1024), ("2g", 2 << 30), ("5kb", 5120)]
)
def test_sizes(text, size):
    assert read(split_bytes=text)["split.bytes"] == size


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1h", 3_600_000)])
def test_durations(text, ms):
    assert read(maxTriggerDelay=text)["maxTriggerDelay"] == ms


def test_exactly_one_way_to_name_topics():
    assert subscription(read(subscribe="a, b,a")).names == ("a", "b")
    assert subscription(read(subscribePattern="a.*")).pattern == "a.*"
    assert subscription(read(assign='{"a": [2, 0, 2]}')).partitions == {"a": (0, 2)}
    with pytest.raises(Rejected, match="one of the options subscribe"):
        subscription(read())
    with pytest.raises(Rejected, match="exclude each other"):
        subscription(read(subscribe="a", assign='{"a": [0]}'))


def test_where_a_query_begins_when_it_does_not_say():
    assert starting(read(), streaming=False).everywhere == EARLIEST
    assert starting(read(), streaming=True).everywhere == LATEST
    assert ending(read(), streaming=False).everywhere == LATEST


def test_offsets_and_times_per_partition():
    bound = starting(read(startingOffsets='{"t": {"0": 7, "1": -2}}'), streaming=False)
    assert bound == Bound("offset", None, {("t", 0): 7, ("t", 1): -2}, "startingOffsets")
    bound = starting(read(startingTimestamp="1000"), streaming=True)
    assert (bound.kind, bound.everywhere) == ("timestamp", 1000)


@pytest.mark.parametrize(
    ("options", "streaming", "words"),
    [
        ({"startingOffsets": "latest"}, False, "cannot start at latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, False, "cannot start at latest"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, False, "0 or more"),
        ({"endingOffsets": "earliest"}, False, "cannot end at earliest"),
        ({"endingOffsets": "latest"}, True, "JSON per partition"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, True, "exclude each other"),
        ({"maxOffsetsPerTrigger": "5"}, False, "for streams"),
    ],
)
def test_contradictions_are_refused_before_a_broker_is_asked(options, streaming, words):
    options = parse_options({**SERVERS, "subscribe": "t", **options}, READ)
    with pytest.raises(Rejected, match=words):
        check_read_options(options, streaming=streaming)


def test_servers_are_asked_for():
    with pytest.raises(Rejected, match=r"kafka\.bootstrap\.servers is missing"):
        check_read_options(parse_options({"subscribe": "t"}, READ), streaming=False)


def test_the_table_of_options_is_complete():
    table = {row[0]: row for row in option_table()}
    assert len(table) == len(OPTIONS) - 2
    assert all(doc for _, _, _, doc in table.values())
    assert table["failOnDataLoss"][2] == "True"


def test_the_guide_shows_every_option_as_it_is_declared():
    guide = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {use} | {f'`{default}`' if default else ''} | {meaning} |"
        for name, use, default, meaning in option_table()
    ]


def test_a_query_gets_its_token_from_an_issuer():
    given = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://id.example.org/token",
        "kafka.sasl.oauthbearer.client.credentials.client.id": "svc",
        "kafka.sasl.oauthbearer.client.credentials.client.secret": "hush",
        "kafka.https.ca.location": "/etc/issuer.pem",
    }
    options = parse_options(given, READ)
    endpoint = options.security.login.endpoint
    assert (endpoint.client_id, endpoint.truststore) == ("svc", "/etc/issuer.pem")
    assert options.ignored == ()
    assert "hush" not in repr(options.security)
