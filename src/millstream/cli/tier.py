"""``millstream tier``: the progress of the archive, damage in the object store, and recovery from it.

``status`` and ``recover`` ask a running broker. ``verify`` and ``scrub`` look into the store themselves: that of
``--objects``, or the one that the broker names.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.broker_http import ask_http, http_url
from millstream.cli.completion import complete_topics
from millstream.cli.failure import CommandFailed
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table, progress, remark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.objects import ObjectStore
    from millstream.tiers.inspection import Tally

_HOUR_MS = 3_600_000
_RECOVERY_S = 600.0

objects_option = click.option(
    "--objects",
    "url",
    metavar="URL",
    help="The object store, such as s3://bucket/prefix; without it, the store of the broker.",
)


@click.command("status")
@click.argument("topic", required=False, shell_complete=complete_topics)
@as_json_option
@bootstrap_option
@timeout_option
def status(topic: str | None, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show how far the tiered topics of a broker are archived, or one of them."""
    from urllib.parse import quote

    from millstream.config.forms import human_size

    path = "/v1/tiers" + (f"?topic={quote(topic)}" if topic else "")
    answer = _ask(bootstrap, timeout, path)
    if as_json:
        print_json(answer)
        return
    partitions = answer["partitions"]
    asked = ", ".join(
        f"{one['count']:,} {one['operation']}"
        + (f" of {human_size(one['bytes'])}" if one["bytes"] else "")
        + (f" ({one['failures']:,} failed)" if one["failures"] else "")
        for one in answer["requests"]
        if one["count"]
    )
    print_facts([("object store", answer["objects_url"]), ("requests", asked or "none since the start")])
    emit("\n")
    print_table(
        ["TOPIC", "#PARTITION", "#START", "#LOCAL FROM", "#ARCHIVED TO", "#END", "#SEGMENTS", "#BYTES", "#WAITING"],
        [
            (
                one["topic"],
                one["partition"],
                one["log_start_offset"],
                one["local_start_offset"],
                one["archived_end_offset"],
                one["high_watermark"],
                one["archived_segments"],
                one["archived_bytes"],
                one["lag_bytes"],
            )
            for one in partitions
        ],
        empty="no tiered topic; 'millstream topic create NAME --config storage.mode=tiered' creates one",
    )


@click.command("recover")
@click.argument("topics", nargs=-1)
@click.option(
    "--topic-id",
    "topic_ids",
    multiple=True,
    metavar="ID",
    help="Recover the topic with this id, in hexadecimal. May be repeated.",
)
@as_json_option
@bootstrap_option
def recover(topics: tuple[str, ...], topic_ids: tuple[str, ...], as_json: bool, bootstrap: str) -> None:
    """Recover topics of a lost broker or cluster from the object store: all topics, or the named ones. In a cluster
    every broker must be alive.

    Of several topics of one name the newest is recovered, and the others are listed; --topic-id chooses one of them.
    """
    lacks = "tells nothing of its tiers"
    first = http_url(bootstrap, _RECOVERY_S, "", lacks)
    brokers = ask_http(f"{first}/v1/cluster", _RECOVERY_S)["brokers"]
    dead = [str(one["id"]) for one in brokers if not one["alive"]]
    if dead:
        raise CommandFailed(f"recovery needs every broker of the cluster, and these are not alive: {', '.join(dead)}")
    places = [http_url(one["address"], _RECOVERY_S, "", lacks) for one in brokers] if len(brokers) > 1 else [first]
    found: dict[str, dict[str, Any]] = {}
    wanted = (*topics, *(f"id:{one.replace('-', '').lower()}" for one in topic_ids))
    for place in places:
        for one in _recovery_step(place, "prepare", wanted):
            before = found.setdefault(one["topic_id"], one)
            if "error" in one:
                before.setdefault("error", one["error"])
    prepared = [f"id:{topic_id}" for topic_id, one in found.items() if "error" not in one]
    for one in _recovery_step(first, "recover", prepared) if prepared else []:
        found[one["topic_id"]].update(one)
    results = list(found.values())
    if as_json:
        print_json({"topics": results})
    else:
        print_table(
            ["TOPIC", "#PARTITIONS", "#RECORDS", "RESULT"],
            [
                (one["topic"], one["partitions"], one.get("records", ""), one.get("error", "recovered"))
                for one in results
            ],
            empty="the object store has no topic",
        )
        for one in results:
            for other in one["others"]:
                written = time.strftime("%Y-%m-%d %H:%M", time.localtime(other["written_ms"] / 1000))
                remark(
                    f"the store has another topic {one['topic']}: {other['topic_id']}, written {written}, beside "
                    f"{one['topic_id']}; --topic-id chooses"
                )
    if any("error" in one for one in results):
        raise click.exceptions.Exit(1)


def _recovery_step(place: str, step: str, topics: Sequence[str]) -> list[dict[str, Any]]:
    body = json.dumps({"topics": list(topics)}).encode()
    return ask_http(f"{place}/v1/tiers/{step}", _RECOVERY_S, body)["topics"]


@click.command("verify")
@click.argument("topic", required=False, shell_complete=complete_topics)
@objects_option
@as_json_option
@bootstrap_option
@timeout_option
def verify(topic: str | None, url: str | None, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Read every archived byte and check it; exit code 1 if anything is damaged or missing. Shared objects, which have
    records of many topics, are read if no topic is named.
    """
    from millstream.tiers.inspection import find_partitions, verify_shared
    from millstream.tiers.inspection import verify as verify_all

    with StoreOfCommand(url, bootstrap, timeout) as store:
        partitions = find_partitions(store, topic)
        total = sum(info.size_bytes for one in partitions for info in one.objects.values())
        with progress() as bar:
            task = bar.add_task("verifying", total=total)
            tally = verify_all(store, partitions, lambda count: bar.advance(task, count))
            if topic is None:
                verify_shared(store, tally)
    _report(tally, as_json=as_json)
    if tally.findings:
        raise click.exceptions.Exit(1)


@click.command("scrub")
@click.argument("topic", required=False, shell_complete=complete_topics)
@objects_option
@click.option("--delete", is_flag=True, help="Remove what is superfluous; without it, only show it.")
@click.option(
    "--older-than",
    "older_than_h",
    type=click.FloatRange(min=0),
    default=1.0,
    metavar="HOURS",
    help="Leave alone what was written later than so many hours ago; 1 without it.",
)
@as_json_option
@bootstrap_option
@timeout_option
def scrub(
    topic: str | None,
    url: str | None,
    delete: bool,
    older_than_h: float,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Find and remove objects that no manifest names, such as those of interrupted uploads."""
    from millstream.objects import ObjectKey
    from millstream.tiers.inspection import find_partitions, find_superfluous

    before_ms = int(time.time() * 1000 - older_than_h * _HOUR_MS)
    with StoreOfCommand(url, bootstrap, timeout) as store:
        tally = find_superfluous(store, find_partitions(store, topic), before_ms)
        superfluous = [ObjectKey(one.key) for one in tally.findings if one.kind == "superfluous"]
        if delete and superfluous:
            store.delete(superfluous)
    _report(tally, as_json=as_json, removed=len(superfluous) if delete else 0)
    if any(one.kind != "superfluous" for one in tally.findings):
        raise click.exceptions.Exit(1)


def _report(tally: Tally, *, as_json: bool, removed: int = 0) -> None:
    import msgspec

    if as_json:
        print_json({**msgspec.to_builtins(tally), "removed": removed})
        return
    if tally.findings:
        print_table(
            ["KIND", "TOPIC", "#PARTITION", "OBJECT", "WHAT"],
            [(one.kind, one.topic, one.partition, one.key.rpartition("/")[2], one.what) for one in tally.findings],
        )
        emit("\n")
    facts: list[tuple[str, Any]] = [
        ("partitions", tally.partitions),
        ("segments", tally.segments),
        ("bytes", f"{tally.bytes:,}"),
        ("findings", len(tally.findings) or "none"),
    ]
    print_facts([*facts, ("removed", removed)] if removed else facts)


class StoreOfCommand:
    """The store of a command, closed at its end; errors become failures of the command."""

    def __init__(self, url: str | None, bootstrap: str, timeout_s: float) -> None:
        self._url = url
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._opened: ObjectStore | None = None

    def __enter__(self) -> ObjectStore:
        from millstream.errors import MillstreamError
        from millstream.objects import open_store

        url = self._url or _ask(self._bootstrap, self._timeout_s, "/v1/tiers")["objects_url"]
        try:
            self._opened = open_store(url, self._timeout_s)
        except MillstreamError as error:
            raise CommandFailed(error.message) from None
        return self._opened

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from millstream.errors import MillstreamError

        if self._opened is not None:
            self._opened.close()
        if isinstance(error, MillstreamError):
            raise CommandFailed(error.message) from None


def _ask(bootstrap: str, timeout_s: float, path: str, body: bytes | None = None) -> dict[str, Any]:
    """What the broker's HTTP port answers. Raises CommandFailed."""
    return ask_http(http_url(bootstrap, timeout_s, path, "tells nothing of its tiers"), timeout_s, body)
