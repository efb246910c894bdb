"""A ``server.properties`` of Apache Kafka is taken as it is, or refused with everything that is wrong in it."""

from pathlib import Path

import pytest

from millstream.config.carried import families, reason_of, warning_about
from millstream.config.errors import ConfigError
from millstream.config.load import load_settings
from millstream.config.node_properties import is_setting

KAFKA_SETTINGS = Path(__file__).with_name("kafka_settings.txt").read_text(encoding="ascii").split()
"""Every broker setting of Apache Kafka 4.3.1, those that it hides included (AbstractKafkaConfig.CONFIG_DEF)."""

AS_SHIPPED = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
listener.name.controller.ssl.client.auth=required
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
group.coordinator.rebalance.protocols=classic
"""


def loaded(tmp_path, text, *overrides):
    path = tmp_path / "server.properties"
    path.write_text(text, encoding="utf-8")
    return load_settings(str(path), overrides)


def complaint(tmp_path, text, *overrides):
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text, *overrides)
    return str(raised.value)


def test_the_file_that_comes_with_kafka_is_taken(tmp_path):
    settings = loaded(tmp_path, AS_SHIPPED)
    assert [str(each) for each in settings.listen] == ["PLAINTEXT://localhost:9092"]
    assert [str(each) for each in settings.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert settings.listener_security_protocol_map == (("PLAINTEXT", "PLAINTEXT"), ("SSL", "SSL"))
    assert settings.data_dir == "/tmp/kraft-combined-logs"
    assert settings.offsets_topic_replication_factor == settings.transaction_state_log_replication_factor == 1
    assert settings.transaction_state_log_min_isr == settings.share_coordinator_state_topic_min_isr == 1
    assert settings.group_coordinator_rebalance_protocols == ("classic",)
    assert not settings.by_listener
    warning = warning_about(settings.carried)
    assert "process.roles" in warning
    assert "inter.broker.listener.name (brokers talk to each other on `peer.listen`" in warning


def test_every_setting_of_kafka_is_known():
    unknown = [name for name in KAFKA_SETTINGS if not is_setting(name) and reason_of(name) is None]
    assert unknown == []


def test_no_setting_is_left_out_that_has_an_effect():
    assert [name for _, names in families() for name in names if is_setting(name)] == []


def test_all_unknown_names_are_refused_together(tmp_path):
    said = complaint(tmp_path, "num.partition=3\nlog.retention.hours=1\nzzz=1\n", "yyy=2")
    assert "num.partition: there is no such setting; did you mean num.partitions?" in said
    assert "line 1)" in said and "zzz: there is no such setting" in said and "line 3)" in said
    assert said.endswith("yyy: there is no such setting; 'millstream config list', with --topics for topics, shows all")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("create.topic.policy.class.name=org.example.Policy", "policies in Java are not run here"),
        ("alter.config.policy.class.name=org.example.Policy", "policies in Java are not run here"),
        ("principal.builder.class=org.example.Names", "ssl.principal.mapping.rules"),
        ("listener.name.lan.ssl.engine.factory.class=org.example.Engine", "not by a Java class"),
        ("config.providers=file", "${file:…} are not resolved here"),
        ("transaction.two.phase.commit.enable=true", "KIP-939"),
        ("remote.log.storage.system.enable=true", "objects.url"),
        ("process.roles=controller", "every broker is a controller"),
        ("controller.quorum.voters=1@a:9093,2@b:9093", "would start alone here: give seeds"),
        ("controller.quorum.bootstrap.servers=a:9093,b:9093", "would start alone here: give seeds"),
        ("zookeeper.connect=zk:2181", "would start alone here: give seeds"),
        ("log.dirs=/a,/b", "a broker has one, data.dir"),
        ("group.coordinator.rebalance.protocols=consumer", "with classic among them"),
        ("offsets.topic.replication.factor=0", "is not valid"),
    ],
)
def test_a_value_that_promises_what_is_not_done_is_refused(tmp_path, text, said):
    assert said in complaint(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "transaction.two.phase.commit.enable=false",
        "create.topic.policy.class.name=",
        "remote.log.storage.system.enable=false\nrsm.config.bucket=b",
        "remote.log.storage.system.enable=true\nobjects.url=file:///srv/objects",
        "controller.quorum.voters=1@a:9093",
        "listener.name.lan.scram-sha-512.sasl.jaas.config=x required;",
    ],
)
def test_values_without_such_a_promise_are_left_out(tmp_path, text):
    assert loaded(tmp_path, text).carried


def test_a_broker_with_seeds_may_name_the_old_controllers(tmp_path):
    text = "controller.quorum.voters=1@a:9093,2@b:9093\nseeds=a:9192,b:9192\npeer.listen=a:9192\nnode.id=1\n"
    assert loaded(tmp_path, text).seeds


def test_the_warning_shows_no_value(tmp_path):
    settings = loaded(tmp_path, "sasl.jaas.config=org.example.Module required password=hunter2;")
    assert "hunter2" not in warning_about(settings.carried)
    assert "hunter2" not in repr(settings)
