"""``millstream job scrub``: every archived object and every closed segment file, read whole by Spark."""

from __future__ import annotations

import os
import time
from base64 import b64decode
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from millstream.cli import identity
from millstream.cli.completion import complete_topics
from millstream.cli.failure import CommandFailed
from millstream.cli.options import as_json_option, bootstrap_option
from millstream.cli.output import emit, print_facts, print_json, print_table, progress, remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.client import Cluster
    from millstream.format.manifest import Manifest
    from millstream.objects import ObjectStore
    from millstream.spark.scrub import Checked, Piece

_TIMEOUT_S = 30.0
_HOUR_MS = 3_600_000


@click.command("scrub")
@click.argument("topics", nargs=-1, shell_complete=complete_topics)
@click.option("--id", "job_id", metavar="ID", help="Name of the job; made of the topics if not given.")
@click.option("--state", metavar="DIR", default=os.path.join(".millstream", "jobs"), help="Directory of jobs.")
@click.option("--objects", "url", metavar="URL", help="The object store by another URL than the broker's.")
@click.option("--cores", metavar="N", type=click.IntRange(min=1), help="Cores of a local Spark. Default: all.")
@bootstrap_option
@as_json_option
def scrub(
    topics: tuple[str, ...],
    job_id: str | None,
    state: str,
    url: str | None,
    cores: int | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Read whole topics and check every byte: all topics, or those named. Nothing is changed.

    It reads each archived object, and each closed segment file of every broker whose data directory is on this machine.
    Exit code 1 if anything is damaged or missing. Run the same command again to continue an interrupted job.
    """
    from millstream.cli.spark_work import plain_errors, quiet_engine, signals_to
    from millstream.pipeline.extra import need_extra

    directory = os.path.join(state, job_id or "-".join(("scrub", *(topics or ("all",)))))
    stopping: list[bool] = []
    started = time.monotonic()
    with plain_errors():
        need_extra("pyspark", "jobs")
        from millstream import spark as ms
        from millstream.spark import scrub as job

        sound = job.begin(directory, topics)
        plan = Plan(bootstrap, topics, url)
        left = [one for one in plan.pieces if one not in sound]
        with quiet_engine(directory), signals_to(lambda: stopping.append(True)):
            spark = ms.session("scrub", cores=cores, conf={"spark.ui.enabled": "false"})
            try:
                spark.sparkContext.setLogLevel("ERROR")
                with progress(show=not as_json) as bar:
                    task = bar.add_task("reading", total=sum(one.size_bytes for one in left))
                    done = job.run(
                        spark,
                        directory,
                        left,
                        plan.url,
                        advance=lambda count: bar.advance(task, count),
                        stopped=lambda: bool(stopping),
                    )
            finally:
                spark.stop()
        # What was deleted since is no finding.
        suspect = [one for one in done if one.finding]
        findings = sorted(plan.findings, key=str)
        if suspect or any(one["kind"] != "superfluous" for one in findings):
            again = Plan(bootstrap, topics, url)
            findings = [one for one in findings if one in again.findings]
            suspect = [one for one in suspect if one.piece in set(again.pieces)]
        findings += [
            _finding(one.finding, one.piece.topic, one.piece.partition, one.piece.place, one.what) for one in suspect
        ]
        if not stopping:
            job.end(directory)
    _report(plan, done, findings, len(plan.pieces) - len(left), time.monotonic() - started, bool(stopping), as_json)
    if any(one["kind"] != "superfluous" for one in findings):
        raise click.exceptions.Exit(1)


class Plan:
    """What there is to be read, and what is wrong already without reading it.

    Raises:
        CommandFailed: a broker does not answer, or a topic does not exist.
        MillstreamError: the store does not answer.
    """

    def __init__(self, bootstrap: str, topics: Sequence[str], url: str | None) -> None:
        from millstream.client import Cluster

        self.pieces: list[Piece] = []
        self.findings: list[dict[str, Any]] = []
        self.elsewhere: list[int] = []
        """Brokers whose data directories are not on this machine."""

        self.url = url or ""
        self._shared: dict[tuple[str, int], Manifest] = {}
        """Manifests of shared partitions, from the broker that knows most: that in the store may be older."""

        with Cluster(bootstrap, timeout_s=_TIMEOUT_S, security=identity.security()) as cluster:
            found = cluster.metadata(list(topics) or None).topics
            unknown = [name for name in topics if found[name].error_code]
            if unknown:
                raise CommandFailed(f"topic {unknown[0]} does not exist; 'millstream topic list' shows those that do")
            names = sorted(topics or found)
            archived = [
                one
                for node_id in sorted(cluster.metadata([]).brokers)
                for one in self._of_broker(cluster, node_id, names)
            ]
        self._of_store(sorted(set(archived)))

    def _of_broker(self, cluster: Cluster, node_id: int, names: Sequence[str]) -> Iterator[str]:
        """Closed segment files of a broker; gives the topics that are archived."""
        from millstream.cli.broker_http import ask_http
        from millstream.client.cluster import BROKER_RESOURCE
        from millstream.model.endpoint_setting import HTTP_ENDPOINT

        settings = cluster.describe_configs(BROKER_RESOURCE, str(node_id), [HTTP_ENDPOINT], node_id=node_id)
        place = (settings.get(HTTP_ENDPOINT) or "").rstrip("/")
        if not place:
            raise CommandFailed(f"broker {node_id} has no HTTP port, which says where its files are")
        for name in names:
            listed = ask_http(f"{place}/v1/topics/{quote(name, safe='')}/segments", _TIMEOUT_S)
            self.url = self.url or listed.get("objects_url") or ""
            if any("archived_end_offset" in one for one in listed["partitions"]):
                yield name
            for partition in listed["partitions"]:
                if "shared_manifest" in partition:
                    self._note_shared(name, partition)
            if not os.path.isdir(listed["data_dir"]):
                self.elsewhere += [node_id] if node_id not in self.elsewhere else []
                continue
            for partition in listed["partitions"]:
                self._of_files(name, partition)

    def _of_files(self, topic: str, partition: dict[str, Any]) -> None:
        from millstream.format.names import parse_segment
        from millstream.spark.scrub import Piece, find_holes

        index = int(partition["partition"])
        files = [
            Piece(
                topic,
                index,
                one["path"],
                one["base_offset"],
                one["end_offset"],
                one["bytes"],
                gaps=(parse_segment(os.path.basename(one["path"])) or (0, 0))[1] > 0,
            )
            for one in sorted(partition["segments"], key=lambda one: one["base_offset"])
            if one["end_offset"] > one["base_offset"]
        ]
        self.pieces += files
        begins = max(int(partition["log_start_offset"]), int(partition.get("archived_end_offset", 0)))
        for start, end in find_holes(files, begins):
            self._note(
                "missing", topic, index, os.path.dirname(files[0].place), f"no file has offsets {start}–{end - 1}"
            )

    def _note_shared(self, topic: str, partition: dict[str, Any]) -> None:
        from millstream.format.manifest import decode_manifest

        manifest = decode_manifest(b64decode(partition["shared_manifest"]))
        key = topic, int(partition["partition"])
        known = self._shared.get(key)
        if known is None or _age(known) < _age(manifest):
            self._shared[key] = manifest

    def _of_store(self, topics: Sequence[str]) -> None:
        from millstream.format.archive import manifest_key
        from millstream.objects import open_store
        from millstream.tiers.inspection import find_partitions, find_superfluous

        if not topics or not self.url:
            return
        store = open_store(self.url, _TIMEOUT_S)
        try:
            partitions = [one for one in find_partitions(store) if one.topic in topics]
            for one in partitions:
                if (one.topic, one.owner.partition_index) not in self._shared:
                    self._of_manifest(store, one)
            for (topic, _), manifest in self._shared.items():
                self._of_segments(store, topic, manifest, manifest_key(manifest.owner))
            tally = find_superfluous(store, partitions, int(time.time() * 1000) - _HOUR_MS)
        finally:
            store.close()
        for one in tally.findings:
            if one.kind == "superfluous":
                self._note(one.kind, one.topic, one.partition, one.key, one.what)

    def _of_manifest(self, store: ObjectStore, partition: Any) -> None:
        from millstream.errors import Corruption
        from millstream.format.archive import manifest_key
        from millstream.tiers.inspection import manifest_of

        owner, key = partition.owner, manifest_key(partition.owner)
        if key not in partition.objects:
            return  # nothing is archived so far, or its manifest is about to be written
        try:
            manifest = manifest_of(store, owner)
        except Corruption as error:
            self._note("damaged", partition.topic, owner.partition_index, key, error.message)
            return
        self._of_segments(store, partition.topic, manifest, key)

    def _of_segments(self, store: ObjectStore, topic: str, manifest: Manifest, key: str) -> None:
        from millstream.errors import Corruption
        from millstream.format.shared_object import object_key
        from millstream.model.shared import NO_OBJECT
        from millstream.spark.scrub import Piece, find_holes
        from millstream.tiers.inspection import segments_of

        owner = manifest.owner
        try:
            segments = list(segments_of(store, manifest))
        except Corruption as error:
            self._note("damaged", topic, owner.partition_index, key, error.message)
            return
        pieces = [
            Piece(
                topic,
                owner.partition_index,
                object_key(owner, one),
                one.base_offset,
                one.end_offset,
                one.size_bytes,
                owner.topic_id.hex,
                one,
                gaps=one.object_id == NO_OBJECT,
            )
            for one in segments
        ]
        self.pieces += pieces
        for start, end in find_holes(pieces, manifest.start_offset):
            self._note("missing", topic, owner.partition_index, key, f"it lacks offsets {start}–{end - 1}")

    def _note(self, kind: str, topic: str, partition: int, place: str, what: str) -> None:
        self.findings.append(_finding(kind, topic, partition, place, what))


def _age(manifest: Manifest) -> tuple[int, int]:
    """What rises from one state of a partition's archive to the next."""
    from millstream.format.manifest import unpack_run

    ends = [one.end_offset for one in manifest.parts] + [unpack_run(one)[-1].end_offset for one in manifest.runs[-1:]]
    return max([*ends, manifest.start_offset]), manifest.version


def _finding(kind: str, topic: str, partition: int, place: str, what: str) -> dict[str, Any]:
    return {"kind": kind, "topic": topic, "partition": partition, "place": place, "what": what}


def _report(
    plan: Plan,
    done: Sequence[Checked],
    findings: Sequence[dict[str, Any]],
    before: int,
    seconds: float,
    stopped: bool,
    as_json: bool,
) -> None:
    """Print what a run found. ``before`` are the pieces that an earlier run of the job has read."""
    read = [one.piece for one in done]
    figures = {
        "objects": sum(one.archived is not None for one in read),
        "files": sum(one.archived is None for one in read),
        "before": before,
        "batches": sum(one.batches for one in done),
        "bytes": sum(one.size_bytes for one in read),
        "seconds": round(seconds, 1),
    }
    for node_id in plan.elsewhere:
        remark(f"the files of broker {node_id} are not on this machine: run the command there, too")
    if as_json:
        print_json({**figures, "elsewhere": plan.elsewhere, "findings": list(findings), "stopped": stopped})
        return
    if findings:
        ordered = sorted(findings, key=lambda one: one["kind"])
        rows = [row for _, group in groupby(ordered, key=lambda one: one["kind"]) for row in group]
        print_table(
            ["KIND", "TOPIC", "#PARTITION", "PLACE", "WHAT"],
            [(one["kind"], one["topic"], one["partition"], one["place"], one["what"]) for one in rows],
        )
        emit("\n")
    print_facts(
        [
            ("objects, this run", f"{figures['objects']:,}"),
            ("segment files, this run", f"{figures['files']:,}"),
            ("read by earlier runs", f"{before:,}"),
            ("batches", f"{figures['batches']:,}"),
            ("bytes", f"{figures['bytes']:,}"),
            ("findings", len(findings) or "none"),
            ("seconds", figures["seconds"]),
        ]
    )
    if stopped:
        remark("stopped; the same command continues from here")
