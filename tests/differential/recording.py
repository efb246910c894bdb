"""What Kafka answered, on disk: one file an API, a line for each answer that differs between versions.

The files hold facts from a run, with everything taken out that changes between runs, and are written by
``make differential ARGS=--save``. ``make differential`` fails when Kafka answers otherwise than they say.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from differential.table import Input

FOLDER = Path(__file__).with_name("recorded")

Seen = Mapping[str, Any]


def load() -> dict[str, dict[str, Any]]:
    """Input id → what was seen."""
    return {
        f"{path.stem}: {name} v{version}": steps
        for path in sorted(FOLDER.glob("*.json"))
        for name, version, steps in _entries(path)
    }


def _entries(path: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for name, variants in json.loads(path.read_text(encoding="utf-8")).items():
        for variant in variants:
            for version in variant["versions"]:
                yield name, version, variant["seen"]


def save(seen: Mapping[Input, Seen], *, whole: bool) -> None:
    """Writes what was seen. Unless it is the whole run, what the files hold of other inputs stays."""
    answers = {at.id: (at.case.api, at.case.name, at.version, steps) for at, steps in seen.items()}
    if not whole:
        for path in sorted(FOLDER.glob("*.json")):
            for name, version, steps in _entries(path):
                answers.setdefault(f"{path.stem}: {name} v{version}", (path.stem, name, version, steps))
    by_api: dict[str, dict[str, dict[str, list[int]]]] = {}
    for api, name, version, steps in sorted(answers.values(), key=lambda one: one[:3]):
        variants = by_api.setdefault(api, {}).setdefault(name, {})
        variants.setdefault(json.dumps(steps, ensure_ascii=False), []).append(version)
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
