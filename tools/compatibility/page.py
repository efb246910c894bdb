"""``docs/compatibility.md``: generated from the tables that the broker itself uses, and from what was recorded.

The APIs are those that the dispatcher serves, with the versions that the codec declares; topic configurations come
from the one registry; what is not served and where answers differ stands, with reasons, in the files that hold the
differential runs to it. Only Kafka's own version ranges and the results of other people's suites are recorded facts
(``tools.compatibility.record``). An API that Kafka serves and that has neither a handler nor a reason makes this fail.
"""

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DIFFERENTIAL = ROOT / "tests" / "differential"

INTRODUCTION = """\
What a client of Apache Kafka {version} finds here, and what not. This page is generated: the APIs and their versions,
the configurations of a topic and the reasons are what the broker and its tests use themselves.
"""
APIS = """\
"Versions here" are those that a client may use, "in Kafka" those that Apache Kafka {version} advertises (asked on
{date}). What is not served is not advertised either, so a client that looks before it asks never meets it.
"""
CONFIGS = """\
Every configuration that Apache Kafka knows for a topic is accepted, shown by DescribeConfigs with its source and
documentation, and checked. Defaults, bounds and explanations are in the [reference](reference/configuration.md).
"""
LIMITS = """\
Bounds that Apache Kafka does not have, or has as settings only; they keep one client from taking what all share.

What `make fuzz` and `make test` hold every decoder of requests to, for a request of n bytes: no single allocation of
more than 4 n + 64 KiB, and all objects together no more than 4 n + 8 MiB and 48 bytes for each byte. All together
cannot be 4 n: the smallest element of an array has one byte on the wire and is a place of eight bytes in a list and,
mostly, an object, and an honest Fetch of many partitions becomes eight times its bytes. The same holds for the batch
decoder's single allocations, where n is the batch *decompressed*: what a compressed one unfolds to is bounded by the
limit below, not by its length.
"""
CLIENTS = """\
Suites written by others, run unmodified by `make conformance` ([how they are judged](conformance.md)).
"""
KAFKA_TESTS = """\
Of the tests that Apache Kafka {version} publishes and that start a cluster, {count} must pass against brokers of ours.
*Aborted* tests read what only a broker inside their own JVM has; *by decision* are tests of what Millstream does
another way on purpose. Both counts have their reasons below the table, and so have the classes that do not run.
"""
DIFFERENCES = """\
`make differential` asks this broker and a real Apache Kafka the same, byte for byte, and compares. It fails on any
difference that is not one of these.
"""


def compatibility_page() -> str:
    """The page's text."""
    kafka = json.loads((HERE / "kafka.json").read_text(encoding="utf-8"))
    clients = json.loads((HERE / "clients.json").read_text(encoding="utf-8"))
    parts = [
        f"# Compatibility\n\n{INTRODUCTION.format(**kafka)}",
        f"## APIs\n\n{APIS.format(**kafka)}\n{apis_table(kafka)}",
        f"## Not served\n\n{not_served_table(kafka)}",
        f"## Topic configurations\n\n{CONFIGS}\n{configurations_table()}",
        f"## Limits\n\n{LIMITS}\n{limits_table()}",
        f"## Clients and tools\n\n{CLIENTS}\n{clients_table(clients)}",
        f"## Apache Kafka's own tests\n\n{kafka_tests(kafka['version'])}",
        f"## Known differences\n\n{DIFFERENCES}\n{differences_table()}",
    ]
    return "\n".join(parts)


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def table(*heads: str) -> str:
    return row(*heads) + "|" + "---|" * len(heads) + "\n"


def versions(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}–{high}"


def apis_table(kafka: dict[str, Any]) -> str:
    from millstream.kafka.served import advertised_versions
    from millstream.wire.apis import api_name

    text = table("Key", "API", "Versions here", "in Kafka", "")
    for key, (low, high) in sorted(advertised_versions().items()):
        theirs = kafka["apis"].get(str(key))
        note = "" if theirs == [low, high] else "differs"
        if theirs is None:
            note = "a Kafka as it comes does not advertise it"
        text += row(key, api_name(key), versions(low, high), versions(*theirs) if theirs else "–", note)
    return text


def not_served_table(kafka: dict[str, Any]) -> str:
    from millstream.kafka.served import SERVED

    reasons = tomllib.loads((DIFFERENTIAL / "not_served.toml").read_text(encoding="utf-8"))["api"]
    known = {one["key"]: one for one in reasons}
    text = table("Key", "API", "in Kafka", "Why not here")
    for key in sorted(int(key) for key in kafka["apis"]):
        if key in SERVED:
            continue
        if key not in known:
            raise SystemExit(f"API {key} is neither served nor in {DIFFERENTIAL / 'not_served.toml'}")
        text += row(key, known[key]["name"], versions(*kafka["apis"][str(key)]), known[key]["reason"])
    return text


def configurations_table() -> str:
    from millstream.config.topic_properties import REFUSED_VALUES, TOPIC_PROPERTIES

    text = table("Configuration", "Values", "Default", "")
    for name, declaration in sorted(TOPIC_PROPERTIES.items()):
        if declaration.hidden:
            continue
        link = f"[`{name}`](reference/configuration.md#topic-{name.replace('.', '-')})"
        refused = REFUSED_VALUES.get(name)
        note = f"`{refused[0]}` is refused: {refused[1]}" if refused else ""
        text += row(link, declaration.form.expected(), f"`{declaration.shown_default()}`", note)
    return text


def limits_table() -> str:
    from millstream.coordinator.groups_partition import WRITE_BYTES_MAX
    from millstream.core.group.fetch import METADATA_CHARACTERS_MAX
    from millstream.core.group.regex import LENGTH_MAX
    from millstream.iobuf.arena import DEFAULT_SHARES, MemoryClass
    from millstream.kafka.dispatch import CLIENT_ID_KEPT, LINEAR_BYTES_MAX
    from millstream.kafka.repeats import REPEATED_BYTES_MAX
    from millstream.wire.compression import GZIP_MEMBERS_MAX
    from millstream.wire.decoding import ELEMENT_BYTES_MIN, OBJECT_BYTES_MAX, TINY_MAX
    from millstream.wire.encoding import ERROR_TEXT_BYTES
    from millstream.wire.headers import HEADER_TAGS_MAX
    from millstream.wire.inspection import RECORD_COUNT_MAX, RECORDS_MAX

    mib = 1 << 20
    refused = "the connection is closed"
    text = table("What", "At most", "Beyond it")
    frame = f"`socket.request.max.bytes`, and {100 * DEFAULT_SHARES[MemoryClass.RECEIVE]:.0f} % of the shard's memory"
    text += row("A request", frame, refused)
    text += row("A request other than Produce", f"{LINEAR_BYTES_MAX // mib} MiB", refused)
    elements = f"{OBJECT_BYTES_MAX // mib} MiB in memory, {OBJECT_BYTES_MAX // ELEMENT_BYTES_MIN:,} in number"
    text += row("Array elements and tagged fields of one request, in all", elements, refused)
    tiny = f"{TINY_MAX:,}, more where there are two bytes for each"
    text += row("Elements of an array that take one byte each", tiny, refused)
    waiting = "as much as the receive share of the memory budget, 30 % of it"
    text += row("Requests that wait for their answers, as decoded, per shard", waiting, "the next waits")
    text += row("Tagged fields of a request header", f"{HEADER_TAGS_MAX:,}", refused)
    text += row("A client id, as far as it is kept and shown", f"{CLIENT_ID_KEPT:,} characters", "it is cut")
    text += row("A regular expression of a subscription", f"{LENGTH_MAX:,} characters", "INVALID_REGULAR_EXPRESSION")
    text += row("What one request writes about a group", f"{WRITE_BYTES_MAX // mib} MiB", "UNKNOWN_SERVER_ERROR")
    limit = f"{METADATA_CHARACTERS_MAX:,} characters"
    text += row("Metadata of committed offsets in one answer", limit, "UNKNOWN_SERVER_ERROR")
    again = f"{REPEATED_BYTES_MAX // mib} MiB, about"
    repeated = "What one request names again: groups described, their offsets, producers listed"
    text += row(repeated, again, "UNKNOWN_SERVER_ERROR for those beyond")
    text += row("An error message", f"{ERROR_TEXT_BYTES:,} bytes", "it is cut")
    text += row("Members of a gzip stream in a batch", GZIP_MEMBERS_MAX, "the batch is refused where it is opened")
    opened = "MESSAGE_TOO_LARGE or INVALID_RECORD where a topic wants batches opened"
    text += row("A batch's records, decompressed", f"{RECORDS_MAX // mib} MiB", opened)
    text += row("Records of a batch", f"{RECORD_COUNT_MAX:,}", opened)
    return text


def clients_table(clients: dict[str, Any]) -> str:
    text = table("Suite", "Version", "Passed", "Failed", "Not run", "Date")
    for suite, run in sorted(clients.items()):
        text += row(suite, run["version"], run["passed"], run["failed"], run["skipped"], run["date"])
    return text


def kafka_tests(version: str) -> str:
    """By class, from the lists that ``make conformance`` holds the tests to; then the reasons."""
    from conformance import kafka_integration, lists

    suites = (kafka_integration.KafkaIntegration.name, kafka_integration.KafkaStreams.name)
    passing = [name for suite in suites for name in lists.must_pass(suite)]
    aborted = {name: reason for suite in suites for name, reason in lists.aborted(suite).items()}
    decided = [pair for suite in suites for pair in lists.left_out(suite)]
    counts = [Counter(name.partition(".")[0] for name in names) for names in (passing, aborted, dict(decided))]
    text = KAFKA_TESTS.format(version=version, count=len(passing)) + "\n"
    text += table("Class", "Must pass", "Aborted", "By decision")
    for name in kafka_integration.classes():
        short = name.rpartition(".")[2]
        text += row(f"`{short}`", *(each[short] for each in counts))
    for title, reasons in (
        ("Aborted", aborted.items()),
        ("By decision", decided),
        ("Classes that do not run", kafka_integration.left_out()),
    ):
        text += f"\n{title}:\n\n"
        by_reason: dict[str, list[str]] = {}
        for name, reason in reasons:
            by_reason.setdefault(reason, []).append(f"`{name.split('(')[0]}`")
        text += "".join(f"- {reason}: {', '.join(dict.fromkeys(names))}\n" for reason, names in by_reason.items())
    return text


def differences_table() -> str:
    known = tomllib.loads((DIFFERENTIAL / "known_differences.toml").read_text(encoding="utf-8"))["difference"]
    text = table("Where", "Versions", "Difference and reason")
    seen: set[tuple[str, str]] = set()
    for one in known:
        where = one["case"] if one["where"] == "*" else f"{one['case']} at {one['where']}"
        key = (where, one["reason"])
        if key not in seen:
            seen.add(key)
            text += row(f"`{where}`", one.get("versions", "all"), one["reason"])
    return text
