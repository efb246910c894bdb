"""Write the Grafana dashboard, deploy/grafana/millstream.json, from the short list of panels below.

    tools/dashboard.py            # write it
    tools/dashboard.py --check    # fail if the file is not what this would write

Queries are given with ``RATE`` for Grafana's own rate interval. A test checks each of them against the table of
metrics, so a panel cannot ask for what no broker shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).parent.parent / "deploy" / "grafana" / "millstream.json"
RATE = "$__rate_interval"
SCOPE = 'job=~"$job",instance=~"$instance"'


class Panel(NamedTuple):
    """One graph: title, unit, and queries with their legends. A row of the dashboard has 24 columns."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    doc: str
    width: int = 8


def _rate(metric: str, by: str = "", labels: str = "") -> str:
    scope = f"{SCOPE},{labels}" if labels else SCOPE
    total = f"rate({metric}{{{scope}}}[{RATE}])"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def _top(query: str) -> str:
    """The twenty largest series: names of topics and groups have no bound of their own."""
    return f"topk(20, {query.replace('{SCOPE}', f'{{{SCOPE}}}')})"


def _quantile(q: float, metric: str, by: str, labels: str = "") -> str:
    return f"histogram_quantile({q}, {_rate(f'{metric}_bucket', f'le, {by}' if by else 'le', labels)})"


def _now(metric: str, by: str = "shard") -> str:
    return f"sum by ({by}) ({metric}{{{SCOPE}}})" if by else f"sum({metric}{{{SCOPE}}})"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it well?",
        (
            Panel(
                "Partitions not served",
                "short",
                ((_now("millstream_log_faulty", ""), "damaged"),),
                "Above 0: durable data are damaged; millstream log verify names them.",
                6,
            ),
            Panel(
                "Disk full",
                "short",
                ((_now("millstream_storage_read_only"), "shard {{shard}}"),),
                "1 while a shard refuses producers until there is space.",
                6,
            ),
            Panel(
                "Faults of the disk, an hour",
                "short",
                ((f"sum by (kind) (increase(millstream_storage_faults_total{{{SCOPE}}}[1h]))", "{{kind}}"),),
                "Errors of the disk, and damaged data.",
                6,
            ),
            Panel(
                "Log lines, an hour",
                "short",
                (
                    (
                        f'sum by (level) (increase(millstream_log_lines_total{{{SCOPE},level!="info"}}[1h]))',
                        "{{level}}",
                    ),
                ),
                "Warnings and errors in the broker's own log.",
                6,
            ),
        ),
    ),
    (
        "Requests",
        (
            Panel(
                "Requests",
                "reqps",
                ((_rate("millstream_kafka_request_latency_seconds_count", "api"), "{{api}}"),),
                "Answered requests by API.",
            ),
            Panel(
                "Produce latency",
                "s",
                tuple(
                    (_quantile(q, "millstream_kafka_request_latency_seconds", "", 'api="Produce"'), f"p{100 * q:g}")
                    for q in (0.5, 0.99, 0.999)
                ),
                "From a request's last byte to its response, including the sync to the disk.",
            ),
            Panel(
                "Fetch latency",
                "s",
                tuple(
                    (_quantile(q, "millstream_kafka_request_latency_seconds", "", 'api="Fetch"'), f"p{100 * q:g}")
                    for q in (0.5, 0.99)
                ),
                "Waiting for records (fetch.max.wait.ms) included.",
            ),
            Panel(
                "Records in and out",
                "binBps",
                (
                    (_rate("millstream_kafka_produce_bytes_total"), "produced"),
                    (_rate("millstream_kafka_fetch_bytes_total"), "fetched"),
                ),
                "Bytes of record batches.",
            ),
            Panel(
                "Batches refused",
                "ops",
                (
                    (_rate("millstream_kafka_produce_rejected_batches_total"), "refused"),
                    (_rate("millstream_kafka_produce_duplicates_total"), "duplicates"),
                ),
                "By checksum, structure, size, sequence or timestamp. Duplicates are not stored again.",
            ),
            Panel(
                "Connections",
                "short",
                ((_now("millstream_net_connections"), "shard {{shard}}"),),
                "Open client connections.",
            ),
        ),
    ),
    (
        "Shards",
        (
            Panel(
                "CPU",
                "percentunit",
                ((_rate("millstream_process_cpu_seconds_total", "process"), "{{process}}"),),
                "Of every process of the broker; 100 % is a core.",
            ),
            Panel(
                "Callbacks over 500 µs",
                "ops",
                ((_rate("millstream_reactor_stalls_total", "shard"), "shard {{shard}}"),),
                "Each delays all other clients of its shard.",
            ),
            Panel(
                "Callback, p99.9",
                "s",
                ((_quantile(0.999, "millstream_reactor_callback_seconds", "shard"), "shard {{shard}}"),),
                "How long one callback delays the others of its shard.",
            ),
            Panel(
                "Messages between shards",
                "ops",
                ((_rate("millstream_ring_hops_total", "shard"), "to shard {{shard}}"),),
                "Requests received by another shard than their partition's.",
            ),
            Panel(
                "Memory in use",
                "bytes",
                (
                    (_now("millstream_memory_in_use_bytes"), "shard {{shard}}"),
                    (_now("millstream_memory_capacity_bytes", ""), "all there is"),
                ),
                "Of the shards' arenas.",
            ),
            Panel(
                "Reserved, by class",
                "bytes",
                ((_now("millstream_memory_reserved_bytes", "class"), "{{class}}"),),
                "Each class has a limit of its own (millstream_memory_limit_bytes).",
            ),
        ),
    ),
    (
        "Disk",
        (
            Panel(
                "Sync of the write-ahead log, p99",
                "s",
                ((_quantile(0.99, "millstream_wal_sync_latency_seconds", "shard"), "shard {{shard}}"),),
                "Every acknowledgement waits for one.",
            ),
            Panel(
                "Records a sync",
                "short",
                (
                    (
                        f"{_rate('millstream_wal_records_total')} / {_rate('millstream_wal_ticks_total')}",
                        "records",
                    ),
                ),
                "How many batches share one sync.",
            ),
            Panel(
                "Write-ahead log in use",
                "bytes",
                ((_now("millstream_wal_used_bytes"), "shard {{shard}}"),),
                "Freed by checkpoints; wal.bytes is the limit.",
            ),
            Panel(
                "Size of all logs",
                "bytes",
                ((_now("millstream_log_size_bytes"), "shard {{shard}}"),),
                "Bytes of record batches in all partitions.",
            ),
            Panel(
                "Reads",
                "binBps",
                ((_rate("millstream_read_bytes_total", "source"), "{{source}}"),),
                "From the log cache, and from segment files.",
            ),
            Panel(
                "Read from a segment, p99",
                "s",
                ((_quantile(0.99, "millstream_cold_read_latency_seconds", ""), "p99"),),
                "Consumers behind the log cache wait for these reads.",
            ),
            Panel(
                "Compaction",
                "binBps",
                (
                    (_rate("millstream_log_cleaner_read_bytes_total"), "read"),
                    (_rate("millstream_log_cleaner_cleaned_bytes_total"), "left"),
                ),
                "Bytes of segments before and after.",
            ),
            Panel(
                "Dirtiest log",
                "percent",
                ((_now("millstream_log_cleaner_max_dirty_percent"), "shard {{shard}}"),),
                "Share of new records since the last compaction.",
            ),
            Panel(
                "Checkpoint, p99",
                "s",
                ((_quantile(0.99, "millstream_checkpoint_latency_seconds", ""), "p99"),),
                "Segments synced, write-ahead log freed.",
            ),
        ),
    ),
    (
        "Replication",
        (
            Panel(
                "Leaders",
                "short",
                ((_now("millstream_replica_leaders", "instance"), "{{instance}}"),),
                "Partitions with several replicas that each broker leads. Brokers balance them by themselves.",
            ),
            Panel(
                "Under-replicated and leaderless",
                "short",
                (
                    (_now("millstream_replica_under_replicated", "instance"), "under-replicated, {{instance}}"),
                    (_now("millstream_replica_leaderless", "instance"), "leaderless, {{instance}}"),
                ),
                "Led partitions with a replica that is not in sync, and replicas that know no leader. Both are 0 in a "
                "healthy cluster.",
            ),
            Panel(
                "Lost replicas",
                "short",
                ((_now("millstream_replica_lost", "instance"), "{{instance}}"),),
                "Replicas whose files were lost or damaged, and that count for nothing until their leader has filled "
                "them. 0 in a healthy cluster.",
            ),
            Panel(
                "Replica lag",
                "short",
                ((f"max by (instance) (millstream_replica_lag_max{{{SCOPE}}})", "{{instance}}"),),
                "Records that the replica furthest behind lacks of a partition that the broker leads.",
            ),
            Panel(
                "Elections",
                "ops",
                ((_rate("millstream_replica_elections_total", "instance"), "won by {{instance}}"),),
                "Many without a broker that stopped: heartbeats arrive late.",
            ),
            Panel(
                "Highest term",
                "short",
                ((f"max by (instance) (millstream_replica_term_max{{{SCOPE}}})", "{{instance}}"),),
                "Grows by 1 with each election of a partition.",
            ),
            Panel(
                "Brokers",
                "short",
                ((f"max by (state) (millstream_cluster_brokers{{{SCOPE}}})", "{{state}}"),),
                "As the controller sees them.",
            ),
        ),
    ),
    (
        "Tiered topics",
        (
            Panel(
                "Waits to be archived",
                "bytes",
                ((_now("millstream_archive_lag_bytes"), "shard {{shard}}"),),
                "Bytes of closed segments that are not in the object store yet.",
            ),
            Panel(
                "Archived",
                "Bps",
                (
                    (_rate("millstream_archive_uploaded_bytes_total"), "uploaded"),
                    (_rate("millstream_read_bytes_total", labels='source="archive"'), "read back"),
                ),
                "Bytes of segments to the object store and from it.",
            ),
            Panel(
                "Object store, p99",
                "s",
                ((_quantile(0.99, "millstream_object_request_latency_seconds", "operation"), "{{operation}}"),),
                "One request, its retries included.",
            ),
            Panel(
                "Failed requests",
                "reqps",
                ((_rate("millstream_object_request_failures_total", "operation"), "{{operation}}"),),
                "Requests to the object store that failed; they are repeated.",
            ),
            Panel(
                "Blocks served",
                "ops",
                ((_rate("millstream_archive_blocks_total", "source"), "{{source}}"),),
                "Blocks of archived segments by where they came from: memory, the warm cache, the object store.",
            ),
            Panel(
                "Warm cache",
                "s",
                (
                    (_quantile(0.99, "millstream_hot_tier_read_latency_seconds", ""), "p99 of a hit"),
                    (f"avg(millstream_hot_tier_hit_rate{{{SCOPE}}})", "hit rate (of 1)"),
                ),
                "How long a hit takes, and the share of the blocks that it had.",
            ),
        ),
    ),
    (
        "Groups",
        (
            Panel(
                "Groups",
                "short",
                ((_now("millstream_group_count", "state"), "{{state}}"),),
                "By state.",
            ),
            Panel(
                "Rebalances",
                "ops",
                ((_rate("millstream_group_rebalances_total"), "rebalances"),),
                "Completed.",
            ),
            Panel(
                "Offsets committed",
                "ops",
                ((_rate("millstream_group_offset_commits_total"), "commits"),),
                "By all groups.",
            ),
            Panel(
                "Consumer lag",
                "short",
                ((_top("max by (group, topic) (millstream_group_lag{SCOPE})"), "{{group}}, {{topic}}"),),
                "Records between what a group committed and the end of the log; the twenty furthest behind. A lag that "
                "grows for a quarter of an hour is an alert.",
                24,
            ),
        ),
    ),
    (
        "Share groups",
        (
            Panel(
                "Records acquired and acknowledged",
                "ops",
                (
                    (_rate("millstream_share_acquired_records_total"), "acquired"),
                    (_rate("millstream_share_acknowledged_records_total", "kind"), "{{kind}}"),
                ),
                "By members of all share groups. Releases and rejections say that records cannot be processed.",
            ),
            Panel(
                "Records given back or given up",
                "ops",
                (
                    (_rate("millstream_share_timed_out_records_total"), "lock timed out"),
                    (_rate("millstream_share_released_records_total"), "session ended"),
                    (_rate("millstream_share_exhausted_records_total"), "archived at the delivery limit"),
                ),
                "Without an acknowledgement. What is archived at the limit is delivered to nobody any more.",
            ),
            Panel(
                "Sessions and share partitions",
                "short",
                (
                    (_now("millstream_share_sessions"), "sessions"),
                    (_now("millstream_share_partitions"), "share partitions"),
                ),
                "Members that fetch, and the partitions that they read.",
            ),
            Panel(
                "State writes",
                "ops",
                (
                    (_rate("millstream_share_state_writes_total"), "writes"),
                    (_rate("millstream_share_state_failed_writes_total"), "failed"),
                ),
                "Of share partitions, into __share_group_state. An acknowledgement is answered after its write.",
            ),
        ),
    ),
    (
        "Topics",
        (
            Panel(
                "Records received",
                "ops",
                ((_top(_rate("millstream_topic_received_records_total", "topic")), "{{topic}}"),),
                "The twenty busiest topics.",
            ),
            Panel(
                "Bytes received and sent",
                "Bps",
                (
                    (_top(_rate("millstream_topic_received_bytes_total", "topic")), "{{topic}} in"),
                    (_top(_rate("millstream_topic_fetched_bytes_total", "topic")), "{{topic}} out"),
                ),
                "The twenty busiest topics, by direction.",
            ),
            Panel(
                "Size",
                "bytes",
                ((_top("sum by (topic) (millstream_topic_size_bytes{SCOPE})"), "{{topic}}"),),
                "On all brokers that are shown, replicas included; the twenty largest.",
            ),
        ),
    ),
)


def dashboard() -> dict[str, object]:
    """The document that Grafana imports."""
    panels: list[dict[str, object]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        x = 0
        for panel in row:
            if x + panel.width > 24:
                x, y = 0, y + 8
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x += panel.width
        y += 8
    return {
        "title": "Millstream",
        "uid": "millstream",
        "tags": ["millstream"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _variable("job"), _variable("instance")]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, object]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.doc,
        "datasource": source,
        "gridPos": {"h": 8, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> dict[str, object]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> dict[str, object]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f"label_values(millstream_net_connections, {label})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def main() -> int:
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.stderr.write(f"{TARGET.name} is not what tools/dashboard.py writes; run it\n")
            return 1
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
