"""``millstream topic``: what is sent, what is shown, what is refused."""

import json

from cli_fakes import FakeGroup
from click.shell_completion import ShellComplete

from millstream.cli.application import application


def test_human_sizes_are_sent_in_kafkas_spelling(millstream, cluster):
    words = ["--config", "segment.bytes=16MiB", "--config", "retention.ms=7d", "--config", "someones.own=1k"]
    outcome = millstream("topic", "create", "orders", "--partitions", 3, *words)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "created topic 'orders'\n")
    assert len(cluster.topics["orders"]) == 3
    assert cluster.config["orders"] == {"segment.bytes": "16777216", "retention.ms": "604800000", "someones.own": "1k"}


def test_clients_are_silent_and_never_create_topics_by_asking(millstream, cluster):
    millstream("topic", "list")
    assert cluster.configurations[0]["log_level"] == 0
    assert cluster.configurations[0]["allow.auto.create.topics"] is False


def test_an_existing_topic_is_refused_or_kept(millstream, cluster):
    cluster.fill("orders")
    refused = millstream("topic", "create", "orders")
    assert refused.code == 1
    assert "already exists; --if-not-exists" in refused.err
    kept = millstream("topic", "create", "orders", "invoices", "--if-not-exists", "--json")
    assert kept.code == 0
    assert json.loads(kept.out) == [{"topic": "orders", "created": False}, {"topic": "invoices", "created": True}]


def test_the_list_hides_internal_topics(millstream, cluster):
    assert "there are no topics" in millstream("topic", "list").err
    cluster.fill("orders")
    cluster.fill("__consumer_offsets")
    assert millstream("topic", "list").out == "TOPIC   PARTITIONS  REPLICAS\norders           1         1\n"
    shown = json.loads(millstream("topic", "list", "--internal", "--json").out)
    assert [entry["topic"] for entry in shown] == ["__consumer_offsets", "orders"]


def test_describe_shows_offsets_and_what_was_configured(millstream, cluster):
    cluster.fill("orders", b"a", b"b")
    cluster.config["orders"] = {"retention.ms": "5"}
    shown = millstream("topic", "describe", "orders").out
    assert "records     2" in shown
    assert "retention.ms  5" in shown
    assert "retention.bytes" not in shown
    document = json.loads(millstream("topic", "describe", "orders", "--all", "--json").out)
    assert document["partitions"][0] == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 4,
        "replicas": [1],
        "in_sync": [1],
        "start_offset": 0,
        "end_offset": 2,
    }
    assert {"name": "retention.bytes", "value": "-1", "source": "default"} in document["config"]


def test_an_unknown_topic_is_named_with_the_remedy(millstream, cluster):
    for command in (("describe",), ("delete",), ("alter", "--config", "retention.ms=1")):
        outcome = millstream("topic", command[0], "nope", *command[1:])
        assert outcome.code == 1
        assert "there is no topic 'nope'; 'millstream topic list' shows what exists" in outcome.err


def test_alter_sets_unsets_and_adds_partitions(millstream, cluster):
    cluster.fill("orders")
    cluster.config["orders"] = {"retention.ms": "5"}
    words = ["--config", "retention.bytes=1GiB", "--unset", "retention.ms", "--partitions", 4]
    assert millstream("topic", "alter", "orders", *words).err == "changed topic 'orders'\n"
    assert cluster.config["orders"] == {"retention.bytes": "1073741824"}
    assert len(cluster.topics["orders"]) == 4
    fewer = millstream("topic", "alter", "orders", "--partitions", 2)
    assert fewer.code == 1
    assert fewer.err.startswith("error: topic 'orders': Topic already has 4 partitions; give --partitions a larger")


def test_delete_takes_several_and_may_tolerate_absence(millstream, cluster):
    cluster.fill("a")
    cluster.fill("b")
    assert millstream("topic", "delete", "a", "b", "--execute").code == 0
    assert cluster.topics == {}
    assert millstream("topic", "delete", "a", "--if-exists", "--execute").err == "there was no topic 'a'\n"


def test_delete_only_shows_what_would_go(millstream, cluster):
    cluster.fill("a", b"1", b"2")
    cluster.fill("b")
    shown = millstream("topic", "delete", "a", "b", "--json")
    assert json.loads(shown.out) == [
        {"topic": "a", "partitions": 1, "records": 2},
        {"topic": "b", "partitions": 1, "records": 0},
    ]
    said = millstream("topic", "delete", "a")
    assert said.code == 0
    assert "nothing was deleted, --execute does it" in said.err
    assert set(cluster.topics) == {"a", "b"}
    assert millstream("topic", "delete", "nope", "--if-exists").code == 0


def test_a_running_brokers_settings_are_shown_with_their_source(millstream, cluster):
    cluster.config["1"] = {"log.retention.hours": "5"}
    shown = json.loads(millstream("config", "list", "--running", "--json").out)
    assert {"name": "log.retention.hours", "value": "5", "source": "topic"} in shown
    assert "retention.bytes" in millstream("config", "list", "--running").out


def test_status_counts_what_is_not_as_it_should_be(millstream, cluster):
    cluster.topics |= {"a": [[], []], "__consumer_offsets": [[]]}
    outcome = millstream("status", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert (found["cluster_id"], found["topics"], found["internal_topics"], found["partitions"]) == ("c", 1, 1, 3)
    assert found["brokers"] == [{"id": 1, "address": "127.0.0.1:9092", "rack": "r1"}]
    cluster.short.add("a/0")
    outcome = millstream("status")
    assert (outcome.code, outcome.err) == (0, "short of replicas: a/0\n")
    cluster.leaderless.add("a/1")
    outcome = millstream("status")
    assert outcome.code == 1
    assert "without a leader: a/1\n" in outcome.err


def completed(command, words, incomplete):
    shell = ShellComplete(application, {}, "millstream", "_MILLSTREAM_COMPLETE")
    return [item.value for item in shell.get_completions([*command.split(), *words], incomplete)]


def test_shells_complete_the_names_of_topics_groups_and_settings(cluster):
    for name in ("orders", "orders-old", "invoices", "__consumer_offsets", "odd\nname"):
        cluster.topics[name] = [[]]
    cluster.groups |= {"billing": FakeGroup(), "audit": FakeGroup()}
    assert completed("topic describe", [], "ord") == ["orders", "orders-old"]
    assert completed("topic delete", ["orders"], "") == ["invoices", "orders-old"]
    assert completed("consume", [], "__") == ["__consumer_offsets"]
    assert completed("group describe", [], "b") == ["billing"]
    assert completed("config show", [], "num.part") == ["num.partitions"]


def test_nothing_is_completed_where_no_broker_answers(capfd):
    assert completed("topic describe", ["--bootstrap", "127.0.0.1:1"], "o") == []
    assert capfd.readouterr() == ("", "")


def test_an_unclean_cut_names_its_broker_and_says_what_is_lost(millstream, cluster, monkeypatch):
    for words in (["--unclean"], ["--from", 2]):
        refused = millstream("topic", "repair", "orders:0", *words)
        assert refused.code == 2 and "--unclean and --from belong together" in refused.err
    assert "is no partition" in millstream("topic", "repair", "orders").err
    orders = []

    def ask(url, _timeout, body):
        orders.append((url, json.loads(body)))
        done = orders[-1][1]["execute"]
        return {"reason": "damaged", "step": "unclean", "end_offset": 130, "lost": 70, "missing": 9, "done": done}

    monkeypatch.setattr("millstream.cli.topic_repair.http_url_of", lambda _bootstrap, node, *_: f"http://broker-{node}")
    monkeypatch.setattr("millstream.cli.topic_repair.ask_http", ask)
    plan = millstream("topic", "repair", "orders:0", "--unclean", "--from", 2)
    assert plan.code == 0 and "nothing was changed" in plan.err and "up to offset 130" in plan.err
    assert "9 archived records are in no object" in plan.err
    assert "70 records" in plan.err and "acknowledged ones among them" in plan.err
    done = millstream("topic", "repair", "orders:0", "--unclean", "--from", 2, "--execute")
    assert "orders:0 is led by broker 2" in done.err
    assert [url for url, _ in orders] == ["http://broker-2"] * 2
    assert [(one["unclean_from"], one["execute"]) for _, one in orders] == [(2, False), (2, True)]
    assert all("millstream topic repair --unclean by" in one["reason"] for _, one in orders)
