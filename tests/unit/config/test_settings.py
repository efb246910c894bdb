"""Settings of a node: where values come from, what is refused, and with which words."""

import subprocess
import sys

import pytest

from millstream.config import NODE_PROPERTIES, ConfigError, Settings, load_settings, node_property
from millstream.config.listeners import Listener
from millstream.config.load import settings_of, variable_of
from millstream.config.node_properties import without_effect
from millstream.config.relations import remarks
from millstream.config.topic_resolution import topic_config
from millstream.model.error_code import ErrorCode


def complaint(call, *arguments, **named) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **named)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    return str(caught.value)


def test_later_sources_win(tmp_path):
    file = tmp_path / "node.properties"
    file.write_text("# a comment\n\nnum.partitions = 3\nwal.bytes=512MiB\nbroker.rack=a=b\nnode.id=5\n")
    settings = load_settings(
        str(file), ["num.partitions=4", "node.id=6"], {"node_id": 7, "rack": None, "memory_bytes": "1GiB"}
    )
    assert (settings.num_partitions, settings.wal_bytes, settings.rack) == (4, 512 * 2**20, "a=b")
    assert (settings.node_id, settings.memory_bytes) == (7, 2**30)
    assert settings.given == {"num.partitions", "wal.bytes", "broker.rack", "node.id", "memory.bytes"}


def test_variables_win_over_the_file_and_lose_to_set(tmp_path):
    file = tmp_path / "node.properties"
    file.write_text("num.partitions=3\nnode.id=5\n")
    variables = {"MILLSTREAM_NUM_PARTITIONS": "4", "MILLSTREAM_NODE_ID": "6", "MILLSTREAM_WAL_BYTES": "512MiB"}
    others = {
        "MILLSTREAM_PORT": "tcp://10.0.0.1:9092",
        "MILLSTREAM_BOOTSTRAP": "x",
        "NUM_PARTITIONS": "9",
        "PATH": "/bin",
    }
    settings = load_settings(str(file), ["node.id=7"], {}, variables | others)
    assert (settings.num_partitions, settings.node_id, settings.wal_bytes) == (4, 7, 512 * 2**20)
    assert settings.given == {"num.partitions", "node.id", "wal.bytes"}
    assert list(settings_of(variables | others).values()) == ["node.id", "num.partitions", "wal.bytes"]


def test_a_wrong_variable_is_named():
    said = complaint(load_settings, None, [], {}, {"MILLSTREAM_WAL_BYTES": "much"})
    assert "wal.bytes" in said
    assert "MILLSTREAM_WAL_BYTES in the environment" in said


def test_each_setting_has_a_variable_of_its_own():
    assert len({variable_of(name) for name in NODE_PROPERTIES}) == len(NODE_PROPERTIES)


def test_no_hidden_setting_comes_from_the_environment():
    hidden = [name for name, declared in NODE_PROPERTIES.items() if declared.hidden]
    assert hidden
    assert settings_of({variable_of(name): "1" for name in hidden}) == {}


def test_kafkas_other_names_are_understood():
    assert load_settings(None, ["broker.id=9", "log.dirs=/srv/x"]) == Settings(node_id=9, data_dir="/srv/x")


def test_every_default_is_a_value_of_its_own_form():
    settings = Settings()
    for name, declaration in NODE_PROPERTIES.items():
        assert declaration.form.accepts(settings.value(name)), name
        assert declaration.doc.endswith("."), name
        written = declaration.write(settings.value(name))
        if written is not None:
            assert declaration.read(written) == settings.value(name), name
        if declaration.example:
            declaration.read(declaration.example)


def test_memory_defaults_to_a_quarter_of_the_machine_at_most_two_gib():
    with open("/proc/meminfo", encoding="ascii") as file:
        total = int(file.readline().split()[1]) * 1024
    assert 64 * 2**20 <= Settings(shards=1).memory_bytes <= max(min(total // 4, 2 * 2**30), 64 * 2**20)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("num.partition=3", ["num.partition:", "no such setting", "did you mean num.partitions?"]),
        ("num_partitions=3", ["did you mean num.partitions?"]),
        ("zzzzqqq=3", ["zzzzqqq: there is no such setting"]),
        ("num.partitions=abc", ["num.partitions", "'abc'", "a whole number from 1 to"]),
        ("shards=0", ["shards", "'0'", "from 1 to 256"]),
        ("memory.bytes=1MiB", ["memory.bytes", "'1MiB'", "at least 64 MiB", "512MiB"]),
        ("auto.create.topics.enable=yes", ["auto.create.topics.enable", "'yes'", "true or false"]),
        ("listeners=nowhere", ["listeners", "HOST:PORT"]),
        ("data.dir=", ["data.dir", "a directory"]),
        ("whatever", ["name=value"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(override, words):
    message = complaint(load_settings, None, [override])
    for word in words:
        assert word in message


def test_hidden_settings_are_never_suggested():
    assert "did you mean" not in complaint(load_settings, None, ["internal.disk.factor=x"])
    assert load_settings(None, ["internal.disk.factory=a:b"]).internal_disk_factory == "a:b"


def test_a_complaint_about_the_file_says_the_line(tmp_path):
    file = tmp_path / "node.properties"
    file.write_text("node.id=1\nnum.partitions=many\n")
    assert complaint(load_settings, str(file)).endswith(f"({file}, line 2)")
    file.write_text("node.id=1\nnode.id=2\n")
    assert "twice" in complaint(load_settings, str(file))
    file.write_text("just words\n")
    assert "line 1" in complaint(load_settings, str(file))
    file.write_bytes(b"\xff\xfe=\x00")
    assert "UTF-8" in complaint(load_settings, str(file))
    assert "No such file" in complaint(load_settings, str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"memory_bytes": 2**27, "shards": 8}, ["memory.bytes", "8 shards", "fewer shards"]),
        ({"wal_bytes": 2**26, "wal_file_bytes": 2**25, "checkpoint_bytes": 2**24}, ["wal.bytes", "wal.file.bytes"]),
        ({"wal_bytes": 2**27, "checkpoint_bytes": 2**28}, ["wal.bytes", "checkpoint.bytes"]),
        ({"group_min_session_timeout_ms": 10, "group_max_session_timeout_ms": 5}, ["group.max.session.timeout.ms"]),
        (
            {"group_consumer_assignment_interval_ms": 20_000},
            ["group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"],
        ),
        (
            {"group_share_max_size": 500, "group_share_max_share_sessions": 499},
            ["group.share.max.size", "group.share.max.share.sessions"],
        ),
        ({"group_share_delivery_count_limit": 9, "group_share_max_delivery_count_limit": 8}, ["delivery.count.limit"]),
        (
            {"log_cleaner_min_compaction_lag_ms": 1000, "log_cleaner_max_compaction_lag_ms": 10},
            ["log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"],
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, words):
    message = complaint(Settings, **values)
    for word in words:
        assert word in message


def test_live_settings_change_into_new_settings_and_others_refuse():
    settings = Settings(shards=1, log_retention_ms=5)
    changed = settings.with_dynamic({"log.retention.ms": "6000"})
    assert (settings.log_retention_ms, changed.log_retention_ms) == (5, 6000)
    assert changed.dynamic == {"log.retention.ms"}
    assert "restart" in complaint(settings.with_dynamic, {"shards": "2"})
    assert "log.retention.ms" in complaint(settings.with_dynamic, {"log.retention.ms": "7d"})
    assert "message.max.bytes" in complaint(settings.with_dynamic, {"message.max.bytes": "5000000000"})


def test_a_name_that_is_no_setting_changes_nothing():
    settings = Settings(shards=1)
    changed = settings.with_dynamic({"of.a.plugin": "x", "log.retention.ms": "6000"})
    assert changed.dynamic == {"log.retention.ms"}
    assert settings.with_dynamic({"of.a.plugin": "x"}) == settings


def test_a_largest_batch_above_the_largest_request_is_taken_and_what_follows_is_said():
    settings = Settings(shards=1, message_max_bytes=200_000_000)
    (remark,) = remarks(settings)
    assert all(word in remark for word in ("200000000", "socket.request.max.bytes", str(100 * 2**20), "closed"))
    assert topic_config({}, settings).max_message_bytes == settings.socket_request_max_bytes, "memory is bounded by it"
    small = Settings(shards=1, socket_request_max_bytes=50_000)
    assert topic_config({}, small).max_message_bytes == 50_000
    assert remarks(small)
    assert not remarks(Settings(shards=1))
    assert "no such batch" in complaint(topic_config, {"max.message.bytes": "50001"}, small)


def test_settings_are_immutable_and_shown_by_what_was_set():
    settings = Settings(shards=1, node_id=3, listen="[::1]:0")
    assert settings.listen == (Listener("PLAINTEXT", "::1", 0),)
    with pytest.raises(AttributeError, match="immutable"):
        settings.node_id = 4
    shown = "(Listener(name='PLAINTEXT', host='::1', port=0),)"
    assert repr(settings) == f"Settings(listen={shown}, node_id=3, shards=1)"


def test_an_unknown_python_name_is_refused():
    assert "no such setting" in complaint(Settings, partitions=3)


def test_declarations_are_reached_by_class_and_by_name():
    assert Settings.num_partitions is node_property("num.partitions")
    assert Settings.num_partitions.field == "num_partitions"


def test_importing_the_configuration_brings_no_heavy_module():
    script = "import sys, millstream.config; print(*(m for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"msgspec", "click", "rich", "difflib", "asyncio", "socket", "inspect", "logging"} & set(loaded)


def test_kafkas_settings_for_machinery_that_is_not_here_are_accepted_and_say_so():
    settings = Settings(num_io_threads=16, num_partitions=2)
    ignored = without_effect(settings.given)
    assert [declaration.name for declaration in ignored] == ["num.io.threads"]
    assert all(one.doc.startswith("No effect: ") for one in NODE_PROPERTIES.values() if not one.effect)
    assert settings.with_dynamic({"num.network.threads": "6"}).num_network_threads == 6
    with pytest.raises(ConfigError):
        settings.with_dynamic({"queued.max.requests": "6"})
