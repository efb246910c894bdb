"""Differences between two conversations, and which of them are known.

A difference has a path, such as ``1 CreateTopics.topics.a.error_code``: the step, then fields; elements of a list go by
what identifies them. ``known_differences.toml`` holds those that are meant, each with its reason. An entry that matches
nothing in a whole run is stale, which fails the run as a new difference does: the file says what is, not what was.
"""

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from differential.plain import IDENTITY
from differential.table import Case, Input

KNOWN = Path(__file__).with_name("known_differences.toml")
NOT_SERVED = Path(__file__).with_name("not_served.toml")
ABSENT = "nothing"


class Difference(NamedTuple):
    """One place in which the brokers differ."""

    input: Input
    path: str
    kafka: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.input.id} | {self.path} | Kafka: {short(self.kafka)} | ours: {short(self.ours)}"


class Known(NamedTuple):
    """A difference that is meant: patterns for the case's title and the path, and why."""

    case: str
    where: str
    reason: str
    versions: tuple[int, int] = (0, 1 << 15)
    kafka: str = "*"
    ours: str = "*"

    def covers(self, one: Difference) -> bool:
        return (
            fnmatch.fnmatchcase(one.input.case.title, self.case)
            and self.versions[0] <= one.input.version <= self.versions[1]
            and fnmatch.fnmatchcase(one.path, self.where)
            and fnmatch.fnmatchcase(str(one.kafka), self.kafka)
            and fnmatch.fnmatchcase(str(one.ours), self.ours)
        )


class Verdict(NamedTuple):
    """Differences sorted out; ``stale`` are the entries that matched nothing although their cases ran."""

    new: list[Difference]
    known: list[tuple[Difference, Known]]
    stale: list[Known]


def short(value: Any, limit: int = 160) -> str:
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def differences(at: Input, kafka: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    """Every place in which two conversations differ."""
    found: list[Difference] = []
    _compare(at, "", kafka, ours, found)
    return found


def _compare(at: Input, path: str, kafka: Any, ours: Any, found: list[Difference]) -> None:
    if isinstance(kafka, list) and isinstance(ours, list):
        kafka, ours = _by_name(kafka), _by_name(ours)
    if isinstance(kafka, Mapping) and isinstance(ours, Mapping):
        for name in [*kafka, *(name for name in ours if name not in kafka)]:
            _compare(at, f"{path}.{name}".lstrip("."), kafka.get(name, ABSENT), ours.get(name, ABSENT), found)
    elif kafka != ours or type(kafka) is not type(ours):
        found.append(Difference(at, path, kafka, ours))


def _by_name(values: list[Any]) -> dict[str, Any]:
    """A list as a mapping from what identifies its elements, else from their places."""
    out: dict[str, Any] = {}
    for place, value in enumerate(values):
        parts = [value[name] for name in IDENTITY if name in value] if isinstance(value, dict) else [place]
        label = ":".join(str(part) for part in parts if part not in (None, "")) or ("-" if parts else str(place))
        number = 2
        while (name := label if number == 2 else f"{label}#{number - 1}") in out:
            number += 1
        out[name] = value
    return out


def known_differences(path: Path = KNOWN) -> list[Known]:
    """The entries of the file; one without a reason is refused."""
    entries: list[Known] = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("difference", []):
        low, _, high = str(entry.pop("versions", "0-32768")).partition("-")
        entries.append(Known(**entry, versions=(int(low), int(high or low))))
        assert len(entries[-1].reason) > 10, f"{entries[-1]} has no reason"
    unserved = [(f"*.api_keys.{api['key']}", api["reason"]) for api in not_served()]
    return entries + [Known("ApiVersions: *", where, reason, ours=ABSENT) for where, reason in unserved]


def not_served() -> list[dict[str, Any]]:
    """What Kafka advertises and we do not: key, name, reason."""
    return tomllib.loads(NOT_SERVED.read_text(encoding="utf-8"))["api"]


def judge(
    found: Iterable[Difference], entries: list[Known], ran: Iterable[Case], absent: Iterable[Case] = ()
) -> Verdict:
    """Sorts differences; entries about cases that did not run (``absent``) cannot be stale."""
    new: list[Difference] = []
    known: list[tuple[Difference, Known]] = []
    used: set[Known] = set()
    for one in found:
        entry = next((entry for entry in entries if entry.covers(one)), None)
        if entry is None:
            new.append(one)
        else:
            used.add(entry)
            known.append((one, entry))
    titles, others = {one.title for one in ran}, {one.title for one in absent}
    stale = [
        entry
        for entry in entries
        if entry not in used and fnmatch.filter(titles, entry.case) and not fnmatch.filter(others, entry.case)
    ]
    return Verdict(new, known, stale)
