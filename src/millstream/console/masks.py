"""Fields of records that no visitor of the console sees.

::

    value.card.number      headers.authorization      customers/value.email      audit-*/key

A mask is a path as filters have it, without brackets, after the pattern of a topic's name and a slash where it is not
for all topics. Steps go into each element of a list. A mask is applied when a record is decoded, before filters, live
views and exports: a filter that could ask for a field would show what is in it. A key or value in which fields cannot
be separated (text, bytes, a schema that is not known) is masked as a whole. What is masked cannot be sent again.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, cast

import msgspec

from millstream.config.masks import split_mask
from millstream.console.payloads import Payload, shown_document
from millstream.wire.records import Record

MASK: Final = "•••"
_WHOLE: Final = Payload("masked", MASK, MASK, None)


class Mask(NamedTuple):
    """``steps`` lead to a field of the key, the value or the headers (``root``); without steps all of it is masked."""

    topics: str
    root: str
    steps: tuple[str, ...]


def read_masks(texts: Sequence[str]) -> tuple[Mask, ...]:
    """Masks of their texts, which are valid (``config.masks``)."""
    return tuple(Mask(*split_mask(text)) for text in texts)


def masks_of(topic: str, masks: Sequence[Mask]) -> list[Mask]:
    """Those that are for a topic."""
    return [mask for mask in masks if fnmatchcase(topic, mask.topics)]


class Parts(NamedTuple):
    """What a record shows."""

    key: Payload
    value: Payload
    headers: tuple[tuple[str, Payload], ...]
    raw: Record


def masked(parts: Parts, masks: Sequence[Mask]) -> Parts:
    """The parts without what the masks cover. ``raw`` then has what is shown."""
    key = _masked(parts.key, [mask.steps for mask in masks if mask.root == "key"])
    value = _masked(parts.value, [mask.steps for mask in masks if mask.root == "value"])
    names = {step.lower() for mask in masks if mask.root == "headers" for step in mask.steps[:1]}
    every = any(mask.root == "headers" and not mask.steps for mask in masks)
    covered = [every or name.lower() in names for name, _ in parts.headers]
    headers = tuple(
        (name, _WHOLE if hidden else payload) for (name, payload), hidden in zip(parts.headers, covered, strict=True)
    )
    raw = msgspec.structs.replace(
        parts.raw,
        key=parts.raw.key if key is parts.key else _bytes(key),
        value=parts.raw.value if value is parts.value else _bytes(value),
        headers=tuple(
            (name, MASK.encode() if hidden else data)
            for (name, data), hidden in zip(parts.raw.headers, covered, strict=True)
        ),
    )
    return Parts(key, value, headers, raw)


def _masked(payload: Payload, paths: Sequence[tuple[str, ...]]) -> Payload:
    """The payload itself if nothing of it is masked."""
    if not paths or payload.format in ("null", "empty"):
        return payload
    if not all(paths) or not isinstance(payload.data, dict | list):
        return _WHOLE._replace(size=payload.size)
    document: Any = payload.data
    for path in paths:
        document = _without(document, path)
    return payload if document is payload.data else shown_document(payload, document)


def _bytes(payload: Payload) -> bytes:
    """What an export has of a payload that is masked."""
    if payload.data is None:
        return MASK.encode()
    return json.dumps(payload.data, ensure_ascii=False, default=str).encode(errors="backslashreplace")


def _without(document: Any, path: tuple[str, ...]) -> Any:
    """The document with what is at the path masked; the same object if nothing is there."""
    if not path:
        return document if document is None else MASK
    if isinstance(document, list):
        found = [_without(each, path) for each in cast("list[Any]", document)]
        return found if any(new is not old for new, old in zip(found, document, strict=True)) else document
    if not isinstance(document, dict) or path[0] not in document:
        return document
    fields = cast("dict[Any, Any]", document)
    new = _without(fields[path[0]], path[1:])
    return document if new is fields[path[0]] else {**fields, path[0]: new}
