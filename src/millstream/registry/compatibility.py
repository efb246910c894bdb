"""What a compatibility level asks of a new version.

| level | the new schema | the earlier ones | which |
|---|---|---|---|
| BACKWARD | reads | what they wrote | the latest |
| FORWARD | writes | what they read | the latest |
| FULL | both | | the latest |
| …_TRANSITIVE | the same | | all of them |
| NONE | anything | | |
"""

from collections.abc import Callable, Sequence

from millstream.registry.formats.parsed import InvalidSchema, Parsed
from millstream.registry.model import Level, Registered

Read = Callable[[Registered], Parsed]
"""Parses a stored version; raises InvalidSchema if it is not valid."""


def incompatibilities(level: Level, new: Parsed, earlier: Sequence[Registered], read: Read) -> list[str]:
    """Why ``new`` may not follow ``earlier``, the live versions in order; empty if it may."""
    if level == "NONE" or not earlier:
        return []
    found: list[str] = []
    for registered in earlier if level.endswith("_TRANSITIVE") else earlier[-1:]:
        try:
            old = read(registered)
        except InvalidSchema as error:
            found.append(f"version {registered.version} is stored and not valid: {error}")
            continue
        if not level.startswith("FORWARD"):
            found += [f"the new schema does not read version {registered.version}: {d}" for d in new.differences(old)]
        if not level.startswith("BACKWARD"):
            found += [f"version {registered.version} does not read the new schema: {d}" for d in old.differences(new)]
    return found
