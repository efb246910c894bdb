"""Options of Mofka that mean nothing here: a call that gives one warns, and says why.

A script for Mofka stays as it is: what it asks of Mofka's own machinery (engines, pools of threads, dependencies) is no
error. ``python -W error::millstream.diaspora.IgnoredOption`` makes it one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Final

_REASONS: Final = {
    "margo": "connections need no engine",
    "engine": "connections need no engine",
    "engine_args": "connections need no engine",
    "use_progress_thread": "the client has a thread of its own",
    "thread_pool": "callbacks run on threads of the client, whose number is not set",
    "count": "callbacks run on threads of the client, whose number is not set",
    "dependencies": "a partition needs no other services",
    "ack_early": "a push is answered when it is durable; the topic property write.caching answers before",
    "uuid": "a partition's UUID follows from its topic and number",
    "type": "every partition keeps its events in chunk files, as Mofka's default manager does",
    "server_rank": "brokers share out partitions among themselves",
    "pool_name": "brokers have no pools of execution streams",
    "config": "a partition's configuration belongs to create_topic",
}
_OTHERWISE: Final = "this store does not know it"


class IgnoredOption(UserWarning):
    """An option that was given has no effect."""


def warn_ignored(call: str, names: Iterable[str]) -> None:
    """Warn for each option of ``call`` that has no effect."""
    for name in names:
        reason = _REASONS.get(name, _OTHERWISE)
        warnings.warn(f"{call}: {name} has no effect: {reason}", IgnoredOption, stacklevel=3)
