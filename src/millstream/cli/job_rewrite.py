"""``millstream job merge`` and ``millstream job reencode``: other objects in the place of archived segments."""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from millstream.cli import identity
from millstream.cli.completion import complete_topics
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import print_facts, print_json, print_table, progress, remark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.client import Cluster
    from millstream.spark.replacing import Done, Planned, ReplacingJob, Rewriting

_TIMEOUT_S = 120.0
_HTTP_TIMEOUT_S = 30.0
_CODECS = ("zstd", "lz4", "gzip", "snappy", "uncompressed")


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """The options of both commands."""
    options = (
        click.argument("topic", metavar="TOPIC", shell_complete=complete_topics),
        click.option("--execute", is_flag=True, help="Do it; without this it is only shown."),
        click.option("--id", "job_id", metavar="ID", help="Name of the job; made of the topic if not given."),
        click.option("--state", metavar="DIR", default=os.path.join(".millstream", "jobs"), help="Directory of jobs."),
        click.option("--objects", "url", metavar="URL", help="The object store by another URL than the broker's."),
        click.option("--cores", metavar="N", type=click.IntRange(min=1), help="Cores of a local Spark. Default: all."),
        bootstrap_option,
        as_json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("merge")
@click.option("--target", metavar="SIZE", default="512MiB", help="Largest size of a merged segment.")
@_common
def merge(topic: str, target: str, **options: Any) -> None:
    """Join small archived segments of a tiered topic into fewer objects, without changing a record.

    Adjacent segments of at most half of the target are joined up to the target. Readers are not disturbed. The old
    objects are removed after file.delete.delay.ms. Run the same command again to continue an interrupted job.
    """
    from millstream.config.forms import parse_size

    try:
        target_bytes = parse_size(target)
    except ValueError:
        raise WrongUsage(f"--target must be a size such as 512MiB, not {target!r}") from None
    _run("merge", topic, target_bytes=target_bytes, **options)


@click.command("reencode")
@click.option(
    "--codec", metavar="CODEC", required=True, type=click.Choice(_CODECS), help=f"One of {', '.join(_CODECS)}."
)
@_common
def reencode(topic: str, codec: str, **options: Any) -> None:
    """Compress the archived batches of a tiered topic with another codec: offsets, times and producers stay.

    Batches with that codec, transaction markers and events stay as they are. Readers are not disturbed. The old
    objects are removed after file.delete.delay.ms. Run the same command again to continue an interrupted job.
    """
    from millstream.wire.compression import CODECS

    _run("reencode", topic, codec=CODECS[codec], **options)


def _run(
    kind: str,
    topic: str,
    *,
    execute: bool,
    job_id: str | None,
    state: str,
    url: str | None,
    cores: int | None,
    bootstrap: str,
    as_json: bool,
    target_bytes: int = 0,
    codec: int = 0,
) -> None:
    from millstream.cli.spark_work import plain_errors
    from millstream.pipeline.extra import need_extra

    directory = os.path.join(state, job_id or f"{kind}-{topic}")
    stopping: list[bool] = []
    started = time.monotonic()
    with plain_errors():
        need_extra("pyspark", "jobs")
        from millstream.client import Cluster
        from millstream.spark import replacing as work
        from millstream.spark.archive import reachable_store

        job = work.ReplacingJob(kind, topic, target_bytes, codec)
        with Cluster(bootstrap, timeout_s=_TIMEOUT_S, security=identity.security()) as cluster:
            topic_id, partitions, store_url = _look_up(cluster, topic, url)
            store = reachable_store(store_url, _HTTP_TIMEOUT_S)
            try:
                if not execute:
                    _show_plan(job, work.plan(store, topic_id, partitions, job, {}), as_json=as_json)
                    return
                journal, done = work.Journal(directory, job), work.Done()
                work.settle_pending(cluster, job, journal, done)
                planned = work.plan(store, topic_id, partitions, job, journal.versions)
                if any(one.groups for one in planned):
                    rewriting = work.Rewriting(cluster, job, journal, store_url, done, lambda: bool(stopping))
                    _rewrite(rewriting, planned, directory, cores, stopping, show=not as_json)
                if not stopping:
                    work.await_manifests(store, topic_id, journal, done)
                    journal.end()
            finally:
                store.close()
    _show_done(job, done, time.monotonic() - started, as_json=as_json, stopped=bool(stopping))


def _rewrite(
    rewriting: Rewriting,
    planned: Sequence[Planned],
    directory: str,
    cores: int | None,
    stopping: list[bool],
    *,
    show: bool,
) -> None:
    """Carry the plan out on a local Spark, or on the one that the environment names."""
    from millstream import spark as ms
    from millstream.cli.spark_work import quiet_engine, signals_to

    title = f"{rewriting.job.kind} {rewriting.job.topic}"
    with quiet_engine(directory), signals_to(lambda: stopping.append(True)):
        spark = ms.session(title, cores=cores, conf={"spark.ui.enabled": "false"})
        try:
            spark.sparkContext.setLogLevel("ERROR")
            with progress(show=show) as bar:
                total = sum(group.size_bytes for one in planned for group in one.groups)
                task = bar.add_task("rewriting", total=total)
                rewriting.run(spark, planned, lambda count: bar.advance(task, count))
        finally:
            spark.stop()


def _look_up(cluster: Cluster, topic: str, url: str | None) -> tuple[uuid.UUID, list[int], str]:
    """Id and partitions of a tiered topic, and the URL of its store. Raises CommandFailed if it has none."""
    from millstream.cli.broker_http import ask_http
    from millstream.client.cluster import BROKER_RESOURCE
    from millstream.model.endpoint_setting import HTTP_ENDPOINT

    found = cluster.metadata([topic]).topics[topic]
    if found.error_code:
        raise CommandFailed(f"topic {topic} does not exist; 'millstream topic list' shows those that do")
    archived = False
    for node_id in sorted(cluster.metadata([]).brokers):
        settings = cluster.describe_configs(BROKER_RESOURCE, str(node_id), [HTTP_ENDPOINT], node_id=node_id)
        place = (settings.get(HTTP_ENDPOINT) or "").rstrip("/")
        if not place:
            raise CommandFailed(f"broker {node_id} has no HTTP port, which says where its objects are")
        listed = ask_http(f"{place}/v1/topics/{quote(topic, safe='')}/segments", _HTTP_TIMEOUT_S)
        url = url or listed.get("objects_url")
        archived = archived or any("archived_end_offset" in one for one in listed["partitions"])
        if any("shared_manifest" in one for one in listed["partitions"]):
            raise CommandFailed(
                f"topic {topic} is a shared topic: its brokers join its objects themselves (shared.join.bytes, "
                "shared.join.interval.ms), and no job changes them"
            )
    if not archived or not url:
        raise CommandFailed(
            f"topic {topic} is not tiered: its segments are files of its brokers, which no job changes; "
            f"'millstream config set --topic {topic} storage.mode=tiered' archives them"
        )
    return uuid.UUID(bytes=found.topic_id), sorted(found.partitions), url


def _show_plan(job: ReplacingJob, plan: Sequence[Planned], *, as_json: bool) -> None:
    rows = [
        {
            "partition": one.partition,
            "segments": one.segments,
            "bytes": one.size_bytes,
            "groups": len(one.groups),
            "segments_to_rewrite": sum(len(group.before) for group in one.groups),
            "bytes_to_rewrite": sum(group.size_bytes for group in one.groups),
        }
        for one in plan
    ]
    if as_json:
        print_json({"job": job.kind, "topic": job.topic, "executed": False, "partitions": rows})
        return
    print_table(
        ["#PARTITION", "#SEGMENTS", "#BYTES", "#TO REWRITE", "#BYTES TO REWRITE", "#NEW OBJECTS"],
        [
            (
                one["partition"],
                f"{one['segments']:,}",
                f"{one['bytes']:,}",
                f"{one['segments_to_rewrite']:,}",
                f"{one['bytes_to_rewrite']:,}",
                f"{one['groups']:,}",
            )
            for one in rows
        ],
        empty="nothing is archived so far",
    )
    remark("nothing was changed; --execute does it")


def _show_done(job: ReplacingJob, done: Done, seconds: float, *, as_json: bool, stopped: bool) -> None:
    import msgspec

    if as_json:
        facts = msgspec.to_builtins(done)
        print_json(
            {
                "job": job.kind,
                "topic": job.topic,
                "executed": True,
                **facts,
                "seconds": round(seconds, 1),
                "stopped": stopped,
            }
        )
    else:
        rows: list[tuple[str, object]] = [
            ("segments before", f"{done.segments_before:,}"),
            ("segments after", f"{done.segments_after:,}"),
            ("bytes before", f"{done.bytes_before:,}"),
            ("bytes after", f"{done.bytes_after:,}"),
            ("batches", f"{done.batches:,}"),
        ]
        if job.kind == "reencode":
            rows += [
                ("batches with another codec", f"{done.reencoded:,}"),
                ("batches that cannot be decompressed", f"{done.left:,}"),
                ("segments with nothing to change", f"{done.unchanged:,}"),
            ]
        rows += [(f"left out, {why}", f"{count:,}") for why, count in sorted(done.left_out.items())]
        print_facts([*rows, ("seconds", f"{seconds:.1f}")])
    if done.manifests_late:
        remark("the brokers have not written every manifest object yet; readers of the store see the old segments")
    if stopped:
        remark("stopped; the same command continues from here")
