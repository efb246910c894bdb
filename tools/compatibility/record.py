"""Write down the facts of ``docs/compatibility.md`` that only a run can tell, as small files beside this one.

``kafka.json``: the APIs that a real Apache Kafka advertises, asked for here. ``clients.json``: how the suites of the
last conformance runs came out, summed up from what ``make conformance`` keeps. Run it after either changed::

    python -m tools.compatibility.record [--kafka] [--clients]
"""

import argparse
import json
import re
import socket
import struct
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KAFKA = Path(__file__).with_name("kafka.json")
CLIENTS = Path(__file__).with_name("clients.json")
LAST_RUNS = ROOT / ".cache" / "conformance" / "last.json"

API_VERSIONS_KEY = 18


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", action="store_true", help="start Apache Kafka and ask it")
    parser.add_argument("--clients", action="store_true", help="sum up the last conformance runs")
    options = parser.parse_args()
    if options.kafka:
        write(KAFKA, kafka_facts())
    if options.clients:
        write(CLIENTS, client_facts())
    return 0


def write(path: Path, facts: object) -> None:
    text = json.dumps(facts, indent=1)
    path.write_text(re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", text) + "\n", encoding="utf-8")


def kafka_facts() -> dict[str, object]:
    """Which APIs Apache Kafka advertises to clients, and in which versions."""
    from bench.peers.kafka import KAFKA_VERSION, kafka

    with kafka() as peer:
        apis = advertised(peer.bootstrap)
    return {
        "version": KAFKA_VERSION,
        "date": datetime.now(UTC).date().isoformat(),
        "apis": {str(key): found for key, found in apis},
    }


def advertised(bootstrap: str) -> list[tuple[int, list[int]]]:
    """(API key, [lowest, highest version]) as a broker's ApiVersions says."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        request = struct.pack(">hhih", API_VERSIONS_KEY, 0, 1, -1)
        connection.sendall(struct.pack(">i", len(request)) + request)
        stream = connection.makefile("rb")
        answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    error, count = struct.unpack_from(">hi", answer, 4)
    assert error == 0, f"ApiVersions answered {error}"
    entries = struct.iter_unpack(">hhh", answer[10 : 10 + 6 * count])
    return [(key, [low, high]) for key, low, high in sorted(entries)]


def client_facts() -> dict[str, object]:
    """Suite by suite: version, date, and how many tests came out how; only whole runs."""
    runs = json.loads(LAST_RUNS.read_text(encoding="utf-8"))
    facts: dict[str, object] = {}
    for suite, run in sorted(runs.items()):
        if run["unavailable"] or run["only"]:
            continue
        counts = Counter(outcome["state"] for outcome in run["outcomes"])
        facts[suite] = {
            "version": run["version"],
            "date": run["date"],
            **{state: counts[state] for state in ("passed", "failed", "skipped")},
        }
    return facts


if __name__ == "__main__":
    sys.exit(main())
