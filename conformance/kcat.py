"""kcat's basics: what people do with it every day, checked by what it prints.

kcat is the machine's, or Debian's package of it, unpacked. Debian's has the older librdkafka 2.0, which makes this
suite a test of a client of 2023, too.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers.kcat import kcat

from conformance.checks import Bench, Check, Checks

DOCUMENT = Path(__file__).parents[1] / "docs" / "clients.md"


def _kcat(bench: Bench, *arguments: str, stdin: str | None = None, expect: int | None = 0) -> str:
    path, environment = kcat()
    return bench.call([path, "-b", bench.bootstrap, *arguments], stdin, environment, expect=expect)


def _read(bench: Bench, topic: str, *arguments: str, form: str = "%p %o %k %s\\n") -> list[str]:
    """All of a topic, one formatted line a record."""
    where = ["-o", "beginning"] if "-o" not in arguments else []
    return _kcat(bench, "-C", "-t", topic, *where, "-e", "-q", "-f", form, *arguments).splitlines()


def lines_come_back_in_order(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "lines", "-p", "0", stdin="".join(f"line {i}\n" for i in range(1000)))
    assert _read(bench, "lines", "-p", "0", form="%o %s\\n") == [f"{i} line {i}" for i in range(1000)]


def keys_choose_partitions(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "keys", "-K", ":", stdin="".join(f"k{i % 7}:v{i}\n" for i in range(70)))
    homes: dict[str, set[str]] = {}
    rows = [line.split() for line in _read(bench, "keys")]
    for partition, _, key, _ in rows:
        homes.setdefault(key, set()).add(partition)
    assert len(rows) == 70
    assert len(homes) == 7
    assert all(len(home) == 1 for home in homes.values())
    assert len({home for homes_of in homes.values() for home in homes_of}) > 1, "all keys in one partition"


def headers_come_back(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "headers", "-H", "a=1", "-H", "b=two", "-H", "a=3", stdin="x\n")
    assert _read(bench, "headers", form="%h|%s\\n") == ["a=1,b=two,a=3|x"]


def empty_values_can_be_nothing(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "nulls", "-p", "0", "-Z", "-K", ":", stdin="a:\n:b\n")
    assert _read(bench, "nulls", form="%K %S\\n") == ["1 -1", "-1 1"]


def every_compression_comes_back(bench: Bench) -> None:
    value = "".join(f"{i % 10}" for i in range(5000))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        topic = f"packed-{codec}"
        _kcat(bench, "-P", "-t", topic, "-p", "0", "-z", codec, stdin=f"{value}\n" * 50)
        assert _read(bench, topic, "-p", "0", form="%s\\n") == [value] * 50, codec


def offsets_select_where_to_begin(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "offsets", "-p", "0", stdin="".join(f"{i}\n" for i in range(100)))
    assert _read(bench, "offsets", "-p", "0", "-o", "90", form="%s\\n") == [str(i) for i in range(90, 100)]
    assert _read(bench, "offsets", "-p", "0", "-o", "-5", form="%s\\n") == [str(i) for i in range(95, 100)]
    assert _read(bench, "offsets", "-p", "0", "-o", "10", "-c", "3", form="%s\\n") == ["10", "11", "12"]
    assert _read(bench, "offsets", "-p", "0", "-o", "end", form="%s\\n") == []


def timestamps_select_where_to_begin(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "times", "-p", "0", stdin="old\n")
    time.sleep(0.05)  # the two must differ in their millisecond
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    _kcat(bench, "-P", "-t", "times", "-p", "0", stdin="new\n")
    assert _read(bench, "times", "-p", "0", "-o", f"s@{middle}", form="%s\\n") == ["new"]
    assert _read(bench, "times", "-p", "0", "-o", "s@1000", "-o", f"e@{middle}", form="%s\\n") == ["old"]
    assert _kcat(bench, "-Q", "-t", f"times:0:{middle}").split() == ["times", "[0]", "offset", "1"]


def metadata_shows_brokers_and_topics(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "shown", stdin="x\n")
    about = json.loads(_kcat(bench, "-L", "-J", "-t", "shown"))
    assert {broker["name"] for broker in about["brokers"]} == bench.addresses
    (topic,) = about["topics"]
    assert topic["topic"] == "shown"
    assert [part["partition"] for part in topic["partitions"]] == [0, 1, 2, 3]
    everyone = sorted(broker["id"] for broker in about["brokers"])
    for part in topic["partitions"]:
        assert part["leader"] in everyone
        assert sorted(replica["id"] for replica in part["replicas"]) == everyone
        assert {replica["id"] for replica in part["isrs"]} <= {*everyone}
    listed = json.loads(_kcat(bench, "-L", "-J"))
    assert "shown" in {topic["topic"] for topic in listed["topics"]}
    text = _kcat(bench, "-L", "-t", "shown")
    assert '"shown" with 4 partitions' in text


def groups_continue_where_they_committed(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "grouped", stdin="".join(f"{i}\n" for i in range(40)))
    group = ["-G", "kcat-group", "-X", "auto.offset.reset=earliest", "-q", "-e", "-f", "%s\\n"]
    first = _kcat(bench, *group, "grouped").split()
    assert sorted(map(int, first)) == list(range(40))
    _kcat(bench, "-P", "-t", "grouped", stdin="".join(f"{i}\n" for i in range(40, 60)))
    assert sorted(map(int, _kcat(bench, *group, "grouped").split())) == list(range(40, 60))


def json_shows_the_whole_record(bench: Bench) -> None:
    _kcat(bench, "-P", "-t", "whole", "-p", "2", "-K", ":", "-H", "h=1", stdin="k:v\n")
    (record,) = (json.loads(line) for line in _kcat(bench, "-C", "-t", "whole", "-e", "-q", "-J").splitlines())
    assert record["tstype"] == "create"
    assert abs(record["ts"] - time.time() * 1000) < 60_000
    assert (record["partition"], record["offset"], record["key"], record["payload"]) == (2, 0, "k", "v")
    assert record["headers"] == ["h", "1"]


def a_file_goes_as_one_message(bench: Bench) -> None:
    path = bench.folder / "file.bin"
    path.write_bytes(bytes(range(32, 127)) * 1000)
    _kcat(bench, "-P", "-t", "files", "-p", "0", str(path))
    assert _read(bench, "files", "-p", "0", form="%S\\n") == [str(95_000)]


def a_message_that_is_too_large_is_refused_with_its_reason(bench: Bench) -> None:
    path = bench.folder / "large.bin"
    path.write_bytes(b"x" * 2_000_000)
    command = ["-P", "-t", "large", "-p", "0", "-X", "message.max.bytes=3000000", str(path)]
    done = bench.call_fully([kcat()[0], "-b", bench.bootstrap, *command], env=kcat()[1])
    assert "Message size too large" in done.stdout + done.stderr, done.stderr[-300:]
    assert _read(bench, "large", "-p", "0") == []


def an_idempotent_producer_and_acks_zero_deliver(bench: Bench) -> None:
    text = "".join(f"{i}\n" for i in range(100))
    _kcat(bench, "-P", "-t", "once", "-p", "0", "-X", "enable.idempotence=true", stdin=text)
    # Nobody tells an acks=0 producer that a broker does not lead yet: Apache Kafka closes the connection, too.
    _kcat(bench, "-P", "-t", "none", "-p", "0", stdin="led\n")
    _kcat(bench, "-P", "-t", "none", "-p", "0", "-X", "acks=0", stdin=text)
    assert _read(bench, "once", "-p", "0", form="%s\\n") == text.split()
    assert _read(bench, "none", "-p", "0", form="%s\\n") == ["led", *text.split()]


def the_documented_examples_go_as_written(bench: Bench) -> None:
    path, environment = kcat()
    page = DOCUMENT.read_text(encoding="utf-8")
    example = page.split("\n## kcat\n")[1].split("```bash\n")[1].split("```")[0]
    search_path = f"{Path(path).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    script = example.replace("127.0.0.1:9092", bench.bootstrap)
    said = bench.call(["bash", "-ec", script], env={**environment, "PATH": search_path})
    assert {"one", "two"} <= set(said.splitlines())
    assert 'topic "notes" with' in said


class Kcat(Checks):
    name = "kcat"
    about = "kcat's basics"

    def prepare(self) -> str:
        import subprocess

        path, environment = kcat()
        said = subprocess.run([path, "-V"], capture_output=True, text=True, env=environment, check=False).stdout
        return next((line.split()[1] for line in said.splitlines() if line.startswith("Version")), "?")

    def checks(self) -> Sequence[Check]:
        return (
            lines_come_back_in_order,
            keys_choose_partitions,
            headers_come_back,
            empty_values_can_be_nothing,
            every_compression_comes_back,
            offsets_select_where_to_begin,
            timestamps_select_where_to_begin,
            metadata_shows_brokers_and_topics,
            groups_continue_where_they_committed,
            json_shows_the_whole_record,
            a_file_goes_as_one_message,
            a_message_that_is_too_large_is_refused_with_its_reason,
            an_idempotent_producer_and_acks_zero_deliver,
            the_documented_examples_go_as_written,
        )
