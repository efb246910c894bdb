"""What Kafka answered, on disk: one file an API, a line for each answer that differs between versions.

The files hold facts from a run, with everything taken out that changes between runs, and are written by
``make differential ARGS=--save``. ``make differential`` fails when Kafka answers otherwise than they say.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from differential.table import Input

FOLDER = Path(__file__).with_name("recorded")

Seen = Mapping[str, Any]


def load() -> dict[str, dict[str, Any]]:
    """Input id → what was seen."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for name, variants in json.loads(path.read_text(encoding="utf-8")).items():
            for variant in variants:
                for version in variant["versions"]:
                    found[f"{path.stem}: {name} v{version}"] = variant["seen"]
    return found


def save(seen: Mapping[Input, Seen]) -> None:
    """Writes what was seen; other cases of the same files are left as they are unless they are gone."""
    by_api: dict[str, dict[str, dict[str, list[int]]]] = {}
    for at, steps in sorted(seen.items(), key=lambda item: (item[0].case.title, item[0].version)):
        variants = by_api.setdefault(at.case.api, {}).setdefault(at.case.name, {})
        variants.setdefault(json.dumps(steps, ensure_ascii=False), []).append(at.version)
    FOLDER.mkdir(exist_ok=True)
    for api, cases in by_api.items():
        (FOLDER / f"{api}.json").write_text(_file(cases), encoding="utf-8")


def _file(cases: dict[str, dict[str, list[int]]]) -> str:
    blocks = []
    for name, variants in cases.items():
        lines = [f'  {{"versions": {versions}, "seen": {steps}}}' for steps, versions in variants.items()]
        blocks.append(f" {json.dumps(name)}: [\n" + ",\n".join(lines) + "\n ]")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def comparable(steps: Seen) -> Any:
    """What was seen as it comes back from disk."""
    return json.loads(json.dumps(steps))
