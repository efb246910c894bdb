"""Kafka's own command-line tools, from its jars, each used as an operator does and judged by what it says."""

import json
import re
import time
from collections.abc import Sequence

from bench.peers import kafka as peer

from conformance.checks import Bench, Check, CheckFailed, Checks
from conformance.secured import secured

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
SECURED = {"super.users": "User:admin"}
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def _tool(bench: Bench, main: str, *arguments: str, stdin: str | None = None, expect: int | None = 0) -> str:
    """Runs a tool; what it wrote to standard output, and on failure to standard error."""
    command = peer.java_command(main, list(arguments), flags=QUICK, level="off")
    return bench.call(command, stdin, expect=expect)


def _refused(bench: Bench, main: str, *arguments: str) -> str:
    """Runs a tool that must not succeed; everything that it said."""
    done = bench.call_fully(peer.java_command(main, list(arguments), flags=QUICK, level="off"))
    if done.returncode == 0:
        raise CheckFailed(f"{main} {' '.join(arguments)} succeeded")
    return done.stdout + done.stderr


def _at(bench: Bench) -> tuple[str, str]:
    return ("--bootstrap-server", bench.bootstrap)


def _create(bench: Bench, topic: str, partitions: int = 1, *more: str) -> None:
    command = [*_at(bench), "--create", "--topic", topic, "--partitions", str(partitions), *more]
    _tool(bench, peer.TOPIC_COMMAND, *command)


def _write(bench: Bench, topic: str, lines: Sequence[str], *more: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    _tool(bench, peer.CONSOLE_PRODUCER, *_at(bench), "--topic", topic, *more, stdin=text)


def _consume(bench: Bench, topic: str, count: int, *more: str) -> list[str]:
    command = [*_at(bench), "--topic", topic, "--max-messages", str(count), "--timeout-ms", "20000"]
    return _tool(bench, peer.CONSOLE_CONSUMER, *command, *more).splitlines()


def console_producer_and_consumer(bench: Bench) -> None:
    _create(bench, "console", 1)
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    _write(bench, "console", [f"k{i}:v{i}" for i in range(50)], *keyed)
    shown = ["--from-beginning", "--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"]
    assert _consume(bench, "console", 50, *shown) == [f"Offset:{i}\tk{i}\tv{i}" for i in range(50)]
    assert _consume(bench, "console", 3, "--partition", "0", "--offset", "47") == ["v47", "v48", "v49"]


def topics_are_created_described_grown_and_deleted(bench: Bench) -> None:
    _create(bench, "made", 3, "--config", "retention.ms=1234567")
    described = _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", "--topic", "made")
    assert "PartitionCount: 3" in described
    replicas = len(bench.addresses)
    assert f"ReplicationFactor: {replicas}" in described
    assert "retention.ms=1234567" in described
    assert len(re.findall(r"Leader: \d+\tReplicas: [\d,]+\tIsr: [\d,]+", described)) == 3
    assert "already exists" in _refused(bench, peer.TOPIC_COMMAND, *_at(bench), "--create", "--topic", "made")
    _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--create", "--topic", "made", "--if-not-exists")
    _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--alter", "--topic", "made", "--partitions", "5")
    assert "PartitionCount: 5" in _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", "--topic", "made")
    fewer = _refused(bench, peer.TOPIC_COMMAND, *_at(bench), "--alter", "--topic", "made", "--partitions", "2")
    assert "5 partition(s)" in fewer or "would not be an increase" in fewer, fewer
    illegal = _refused(bench, peer.TOPIC_COMMAND, *_at(bench), "--create", "--topic", "not/legal")
    assert "one or more characters other than ASCII alphanumerics" in illegal, illegal
    factor = str(replicas + 1)
    many = _refused(bench, peer.TOPIC_COMMAND, *_at(bench), "--create", "--topic", "r3", "--replication-factor", factor)
    assert f"replication factor of {factor} cannot be reached" in many, many
    _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--delete", "--topic", "made")
    assert "made" not in _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--list").split()
    gone = _refused(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", "--topic", "made")
    assert "does not exist as expected" in gone, gone


def unhealthy_partitions_are_none(bench: Bench) -> None:
    _create(bench, "healthy", 2)
    for question in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", question).strip() == "", question


def configuration_of_a_topic(bench: Bench) -> None:
    _create(bench, "configured", 1)
    topic = [*_at(bench), "--entity-type", "topics", "--entity-name", "configured"]
    _tool(bench, peer.CONFIG_COMMAND, *topic, "--alter", "--add-config", "retention.ms=1000,max.message.bytes=2000")
    described = _tool(bench, peer.CONFIG_COMMAND, *topic, "--describe")
    assert "retention.ms=1000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000" in described, described
    assert "max.message.bytes=2000" in described
    _tool(bench, peer.CONFIG_COMMAND, *topic, "--alter", "--delete-config", "retention.ms")
    described = _tool(bench, peer.CONFIG_COMMAND, *topic, "--describe")
    assert "retention.ms=" not in described
    assert "max.message.bytes=2000" in described
    everything = _tool(bench, peer.CONFIG_COMMAND, *topic, "--describe", "--all")
    for name in ("cleanup.policy", "min.insync.replicas", "segment.bytes", "message.timestamp.type"):
        assert f"  {name}=" in everything, name
    wrong = _refused(bench, peer.CONFIG_COMMAND, *topic, "--alter", "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in wrong or "Invalid value" in wrong, wrong
    unknown = _refused(bench, peer.CONFIG_COMMAND, *topic, "--alter", "--add-config", "no.such.name=1")
    assert "InvalidConfigurationException" in unknown, unknown


def configuration_of_the_broker(bench: Bench) -> None:
    node = _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", "--topic", "__consumer_offsets", expect=None)
    match = re.search(r"Leader: (\d+)", node)
    name = match[1] if match else "0"
    broker = [*_at(bench), "--entity-type", "brokers", "--entity-name", name]
    everything = _tool(bench, peer.CONFIG_COMMAND, *broker, "--describe", "--all")
    for setting in ("node.id", "log.retention.ms", "num.partitions", "message.max.bytes"):
        assert f"  {setting}=" in everything, setting
    _tool(bench, peer.CONFIG_COMMAND, *broker, "--alter", "--add-config", "log.retention.ms=7200000")
    described = _tool(bench, peer.CONFIG_COMMAND, *broker, "--describe")
    assert "log.retention.ms=7200000" in described, described
    _tool(bench, peer.CONFIG_COMMAND, *broker, "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in _tool(bench, peer.CONFIG_COMMAND, *broker, "--describe")


def groups_are_listed_described_reset_and_deleted(bench: Bench) -> None:
    command = peer.CONSUMER_GROUP_COMMAND
    _create(bench, "grouped", 2)
    _write(bench, "grouped", [str(i) for i in range(20)])
    assert len(_consume(bench, "grouped", 20, "--from-beginning", "--group", "tool-group")) == 20
    assert "tool-group" in _tool(bench, command, *_at(bench), "--list").split()
    assert re.search(r"tool-group\s+Empty", _tool(bench, command, *_at(bench), "--list", "--state"))
    one = [*_at(bench), "--group", "tool-group"]
    rows = [line.split() for line in _tool(bench, command, *one, "--describe").splitlines() if "grouped" in line]
    assert sum(int(row[3]) for row in rows) == 20
    assert [row[5] for row in rows] == ["0", "0"]
    assert re.search(r"tool-group\s.*Empty\s+0", _tool(bench, command, *one, "--describe", "--state"))
    assert (
        "has no active members"
        in bench.call_fully(
            peer.java_command(command, [*one, "--describe", "--members"], flags=QUICK, level="off")
        ).stderr
    )
    _tool(bench, command, *one, "--reset-offsets", "--to-earliest", "--topic", "grouped", "--execute")
    rows = [line.split() for line in _tool(bench, command, *one, "--describe").splitlines() if "grouped" in line]
    assert [row[3] for row in rows] == ["0", "0"]
    _tool(bench, command, *one, "--reset-offsets", "--shift-by", "3", "--topic", "grouped:0", "--execute")
    plan = _tool(bench, command, *one, "--reset-offsets", "--to-latest", "--all-topics", "--dry-run")
    assert sum(int(line.split()[3]) for line in plan.splitlines() if "tool-group" in line) == 20
    _tool(bench, command, *one, "--reset-offsets", "--to-datetime", "2001-01-01T00:00:00.000", "--topic", "grouped")
    _tool(bench, command, *one, "--delete-offsets", "--topic", "grouped")
    assert "grouped" not in _tool(bench, command, *one, "--describe", expect=None)
    _tool(bench, command, *one, "--reset-offsets", "--to-earliest", "--topic", "grouped", "--execute")
    assert "successful" in _tool(bench, command, *one, "--delete")
    assert "tool-group" not in _tool(bench, command, *_at(bench), "--list").split()


def a_group_that_never_was_is_named_as_such(bench: Bench) -> None:
    one = [*_at(bench), "--group", "never-was"]
    for wish in ("--describe", "--delete"):
        command = peer.java_command(peer.CONSUMER_GROUP_COMMAND, [*one, wish], flags=QUICK, level="off")
        done = bench.call_fully(command)
        assert "GroupIdNotFoundException" in done.stdout + done.stderr, wish


def offsets_are_shown_for_every_kind_of_time(bench: Bench) -> None:
    _create(bench, "times", 2)
    _write(bench, "times", [str(i) for i in range(30)])
    shell = [*_at(bench), "--topic", "times"]

    def sum_of(*arguments: str) -> int:
        lines = _tool(bench, peer.GET_OFFSET_SHELL, *shell, *arguments).split()
        assert all(line.startswith("times:") for line in lines), lines
        return sum(int(line.rsplit(":", 1)[1]) for line in lines if line.rsplit(":", 1)[1])

    assert sum_of() == 30
    assert sum_of("--time", "latest") == 30
    assert sum_of("--time", "earliest") == 0
    assert sum_of("--time", "earliest-local") == 0
    assert sum_of("--time", "1000") == 0
    assert sum_of("--time", "max-timestamp") >= 0
    assert _tool(bench, peer.GET_OFFSET_SHELL, *shell, "--partitions", "1").startswith("times:1:")
    assert "times:" in _tool(bench, peer.GET_OFFSET_SHELL, *_at(bench), "--topic-partitions", "times:0")


def records_before_an_offset_are_deleted(bench: Bench) -> None:
    _create(bench, "cut", 1)
    _write(bench, "cut", [str(i) for i in range(10)])
    plan = bench.folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "cut", "partition": 0, "offset": 4}]}))
    said = _tool(bench, "org.apache.kafka.tools.DeleteRecordsCommand", *_at(bench), "--offset-json-file", str(plan))
    assert "low_watermark: 4" in said, said
    earliest = _tool(bench, peer.GET_OFFSET_SHELL, *_at(bench), "--topic", "cut", "--time", "earliest")
    assert earliest.strip() == "cut:0:4"
    assert _consume(bench, "cut", 6, "--from-beginning") == [str(i) for i in range(4, 10)]


def log_directories_say_what_they_hold(bench: Bench) -> None:
    _create(bench, "stored", 2)
    _write(bench, "stored", ["x" * 100] * 20)
    said = _tool(bench, peer.LOG_DIRS_COMMAND, *_at(bench), "--describe", "--topic-list", "stored")
    about = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert len(about["brokers"]) == len(bench.addresses)
    for broker in about["brokers"]:
        parts = [part for directory in broker["logDirs"] for part in directory["partitions"]]
        assert sorted(part["partition"] for part in parts) == ["stored-0", "stored-1"]
        assert sum(part["size"] for part in parts) > 2000
        assert all(directory["error"] is None for directory in broker["logDirs"])


def performance_tools_move_what_they_say(bench: Bench) -> None:
    _create(bench, "perf", 3)
    count = 20_000
    producing = ["--topic", "perf", "--num-records", str(count), "--record-size", "200", "--throughput", "-1"]
    properties = ["--command-property", f"bootstrap.servers={bench.bootstrap}", "acks=all"]
    said = _tool(bench, peer.PRODUCER_PERFORMANCE, *producing, *properties)
    assert re.search(rf"^{count} records sent", said, re.MULTILINE), said
    consuming = ["--topic", "perf", "--num-records", str(count), "--group", "perf", "--timeout", "30000"]
    rows = _tool(bench, peer.CONSUMER_PERFORMANCE, *_at(bench), *consuming).splitlines()
    assert float(rows[1].split(",")[4]) == count, rows


def end_to_end_latency_is_measured(bench: Bench) -> None:
    _create(bench, "latency", 1)
    arguments = [bench.bootstrap, "latency", "200", "all", "100"]
    said = _tool(bench, "org.apache.kafka.tools.EndToEndLatency", *arguments)
    assert "Percentiles" in said, said


def verifiable_clients_agree_on_every_record(bench: Bench) -> None:
    _create(bench, "verify", 3)
    total = 2000
    producing = ["--max-messages", str(total), "--acks", "-1"]
    said = _tool(bench, peer.VERIFIABLE_PRODUCER, *_at(bench), "--topic", "verify", *producing)
    events = [json.loads(line) for line in said.splitlines()]
    sent = {(e["partition"], e["offset"]): e["value"] for e in events if e["name"] == "producer_send_success"}
    assert len(sent) == total
    consuming = ["--group-id", "verify", "--reset-policy", "earliest", "--verbose", "--max-messages", str(total)]
    said = _tool(bench, peer.VERIFIABLE_CONSUMER, *_at(bench), "--topic", "verify", *consuming)
    events = [json.loads(line) for line in said.splitlines()]
    read = {(e["partition"], e["offset"]): e["value"] for e in events if e["name"] == "record_data"}
    assert read == sent
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)


def versions_of_every_api_are_shown(bench: Bench) -> None:
    said = _tool(bench, "org.apache.kafka.tools.BrokerApiVersionsCommand", *_at(bench))
    assert all(address in said for address in bench.addresses)
    for api in ("Produce(0)", "Fetch(1)", "CreateTopics(19)", "DescribeCluster(60)"):
        line = next(line for line in said.splitlines() if line.strip().startswith(api))
        assert "usable" in line, line


def cluster_and_groups_are_named(bench: Bench) -> None:
    said = _tool(bench, "org.apache.kafka.tools.ClusterTool", "cluster-id", *_at(bench))
    assert re.match(r"Cluster ID: \S{22}", said), said
    endpoints = _tool(bench, "org.apache.kafka.tools.ClusterTool", "list-endpoints", *_at(bench))
    assert all(address.split(":")[1] in endpoints for address in bench.addresses), endpoints
    _tool(bench, "org.apache.kafka.tools.GroupsCommand", *_at(bench), "--list")


def a_quorum_of_one_is_described(bench: Bench) -> None:
    said = _tool(bench, "org.apache.kafka.tools.MetadataQuorumCommand", *_at(bench), "describe", "--status")
    assert "LeaderId:" in said
    assert re.search(r"CurrentVoters:\s+\[", said), said


def levels_of_features_are_shown_and_none_is_lowered(bench: Bench) -> None:
    main = "org.apache.kafka.tools.FeatureCommand"
    said = _tool(bench, main, *_at(bench), "describe")
    assert re.search(r"Feature: group\.version\s.*FinalizedVersionLevel: 1\s", said), said
    said = _tool(bench, main, *_at(bench), "upgrade", "--feature", "group.version=1")
    assert "group.version was upgraded to 1." in said, said
    assert "Invalid update version 9 for feature group.version" in _refused(
        bench, main, *_at(bench), "upgrade", "--feature", "group.version=9"
    )
    assert "Can't downgrade the version of this feature" in _refused(
        bench, main, *_at(bench), "upgrade", "--feature", "transaction.version=1"
    )


def a_broker_that_is_not_registered_is_not_forgotten(bench: Bench) -> None:
    said = _refused(bench, "org.apache.kafka.tools.ClusterTool", "unregister", *_at(bench), "--id", "999999")
    assert "Broker ID 999999 is not currently registered" in said, said


def reassignments_and_elections_have_nothing_to_do(bench: Bench) -> None:
    _create(bench, "moved", 1)
    main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    said = _tool(bench, main, *_at(bench), "--list")
    assert "No partition reassignments found" in said, said
    election = ["--election-type", "preferred", "--topic", "moved", "--partition", "0"]
    said = _tool(bench, "org.apache.kafka.tools.LeaderElectionCommand", *_at(bench), *election)
    assert "Valid replica already elected for partitions" in said, said


def a_partition_is_reassigned_and_its_first_replica_leads(bench: Bench) -> None:
    """In a cluster the replicas move by one broker, and with them the lead; alone, the tools have the same to say."""
    _create(bench, "shifted", 1)
    _write(bench, "shifted", [f"v{number}" for number in range(30)])
    described = _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", "--topic", "shifted")
    found = re.search(r"Replicas: ([\d,]+)", described)
    assert found is not None, described
    nodes = [int(node) for node in found[1].split(",")]
    wanted = [*nodes[1:], nodes[0]][: max(1, len(nodes) - 1)]
    plan = bench.folder / "plan.json"
    partition = {"topic": "shifted", "partition": 0, "replicas": wanted}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}), encoding="utf-8")
    reassign = ["org.apache.kafka.tools.reassign.ReassignPartitionsCommand", *_at(bench)]
    said = _tool(bench, *reassign, "--reassignment-json-file", str(plan), "--execute")
    assert "Successfully started partition reassignment" in said, said
    limit = time.monotonic() + 60 * bench.patience
    while "is completed" not in (said := _tool(bench, *reassign, "--reassignment-json-file", str(plan), "--verify")):
        assert time.monotonic() < limit, said
    elect = ["org.apache.kafka.tools.LeaderElectionCommand", *_at(bench), "--election-type", "preferred"]
    said = _tool(bench, *elect, "--topic", "shifted", "--partition", "0")
    assert "Successfully completed leader election" in said or "Valid replica already elected" in said, said
    described = _tool(bench, peer.TOPIC_COMMAND, *_at(bench), "--describe", "--topic", "shifted")
    assert f"Leader: {wanted[0]}\tReplicas: {','.join(map(str, wanted))}\t" in described, described
    assert _consume(bench, "shifted", 30, "--partition", "0", "--offset", "earliest") == [
        f"v{number}" for number in range(30)
    ]


def a_client_of_every_kind_is_compatible(bench: Bench) -> None:
    name = f"compatible-{time.time_ns()}"
    features = {
        "offsets-for-times-supported": "true",
        "cluster-id-supported": "true",
        "expect-record-too-large-exception": "false",
        "num-cluster-nodes": str(len(bench.addresses)),
        "create-topics-supported": "true",
        "describe-acls-supported": "true",  # for the tool, SECURITY_DISABLED is support
        "describe-configs-supported": "true",
        "idempotent-producer-supported": "true",
    }
    arguments = [word for feature, value in features.items() for word in (f"--{feature}", value)]
    _create(bench, name, 1)
    main = "org.apache.kafka.tools.ClientCompatibilityTest"
    said = _tool(bench, main, *_at(bench), "--topic", name, *arguments)
    assert "SUCCESS" in said, said


def tools_log_in_over_tls(bench: Bench) -> None:
    """Users and rights are set by tools that trust a PEM file, records move with a PKCS12 trust store."""
    if bench.is_peer:
        raise CheckFailed("a secured broker of ours is what this needs")
    complaints: list[str] = []
    with secured(bench.folder, {"admin": "word-of-admin"}, bench.folder / "log", complaints, SECURED) as broker:
        at = ("--bootstrap-server", broker.addresses["SASL_SSL"])
        store = bench.folder / "ca.p12"
        imported = ["-importcert", "-noprompt", "-alias", "ca", "-file", str(broker.keys / "ca.pem")]
        bench.call(
            ["keytool", *imported, "-storetype", "PKCS12", "-storepass", "of-the-store", "-keystore", str(store)]
        )
        pem = f"ssl.truststore.type=PEM\nssl.truststore.location={broker.keys / 'ca.pem'}\n"
        pkcs12 = "ssl.truststore.type=PKCS12\nssl.truststore.password=of-the-store\n"
        pkcs12 += f"ssl.truststore.location={store}\n"
        admin = ("--command-config", _login(bench, "admin", "word-of-admin", "SCRAM-SHA-512", pem))
        made = ["--alter", "--add-config", "SCRAM-SHA-256=[password=word-of-carl]"]
        user = ["--entity-type", "users", "--entity-name", "carl"]
        _tool(bench, peer.CONFIG_COMMAND, *at, *admin, *user, *made)
        described = _tool(bench, peer.CONFIG_COMMAND, *at, *admin, *user, "--describe")
        assert "SCRAM-SHA-256=iterations=4096" in described, described
        _tool(bench, peer.TOPIC_COMMAND, *at, *admin, "--create", "--topic", "safe")
        carl = _login(bench, "carl", "word-of-carl", "SCRAM-SHA-256", pkcs12)
        _tool(bench, peer.CONSOLE_PRODUCER, *at, "--topic", "safe", "--command-config", carl, stdin="a\nb\n")
        entry = ["--deny-principal", "User:carl", "--operation", "Read", "--topic", "safe"]
        _tool(bench, ACL_COMMAND, *at, *admin, "--add", *entry)
        assert "principal=User:carl" in _tool(bench, ACL_COMMAND, *at, *admin, "--list", "--topic", "safe")
        read = ["--topic", "safe", "--from-beginning", "--max-messages", "2", "--timeout-ms", "20000"]
        assert not _tool(bench, peer.CONSOLE_CONSUMER, *at, *read, "--command-config", carl, expect=None).split()
        _tool(bench, ACL_COMMAND, *at, *admin, "--remove", "--force", *entry)
        assert _tool(bench, peer.CONSOLE_CONSUMER, *at, *read, "--command-config", carl).split() == ["a", "b"]
        wrong = _login(bench, "wrong", "word-of-carl", "SCRAM-SHA-256", pkcs12)
        said = _refused(bench, peer.TOPIC_COMMAND, *at, "--list", "--command-config", wrong)
        assert "Authentication failed" in said, said
    assert not complaints, complaints


def _login(bench: Bench, user: str, password: str, mechanism: str, trust: str) -> str:
    """A file of client properties; its path."""
    path = bench.folder / f"{user}.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n{trust}"
        f'sasl.jaas.config={module} required username="{user}" password="{password}";\n',
        encoding="utf-8",
    )
    return str(path)


class JavaTools(Checks):
    name = "java-tools"
    about = "Kafka's command-line tools"

    def prepare(self) -> str:
        peer.jars()
        peer.java()
        return peer.KAFKA_VERSION

    def is_fast(self, name: str) -> bool:
        return name.startswith(("console_", "topics_", "offsets_"))

    def checks(self) -> Sequence[Check]:
        return (
            console_producer_and_consumer,
            topics_are_created_described_grown_and_deleted,
            unhealthy_partitions_are_none,
            configuration_of_a_topic,
            configuration_of_the_broker,
            groups_are_listed_described_reset_and_deleted,
            a_group_that_never_was_is_named_as_such,
            offsets_are_shown_for_every_kind_of_time,
            records_before_an_offset_are_deleted,
            log_directories_say_what_they_hold,
            performance_tools_move_what_they_say,
            end_to_end_latency_is_measured,
            verifiable_clients_agree_on_every_record,
            versions_of_every_api_are_shown,
            cluster_and_groups_are_named,
            a_quorum_of_one_is_described,
            levels_of_features_are_shown_and_none_is_lowered,
            a_broker_that_is_not_registered_is_not_forgotten,
            reassignments_and_elections_have_nothing_to_do,
            a_partition_is_reassigned_and_its_first_replica_leads,
            a_client_of_every_kind_is_compatible,
            tools_log_in_over_tls,
        )
