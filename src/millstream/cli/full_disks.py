"""Which brokers of a cluster refuse producers because their disk is full.

A broker whose disk is full answers everything, and refuses producers with an error that their clients retry. A client
that gives up knows no more than that time has passed. So ``produce``, ``status`` and ``cluster health`` ask each
broker's ``/healthz``.
What a broker does not say, in time or at all, is left out: another broker than Millstream has no such page.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from millstream.cli.failure import CommandFailed
from millstream.model.endpoint_setting import HTTP_ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.cli.confluent import AdminClient

_ASK_S: Final = 2.0


def full_disks(client: AdminClient, nodes: Iterable[int]) -> list[int]:
    """The brokers among ``nodes`` that say that they take no writes."""
    from millstream.cli.confluent import ConfigResource, KafkaException, ResourceType

    wanted = [ConfigResource(ResourceType.BROKER, str(node)) for node in sorted(nodes)]
    full: list[int] = []
    for resource in wanted:
        try:
            (future,) = client.describe_configs([resource], request_timeout=_ASK_S).values()
            entry = future.result(_ASK_S + 1).get(HTTP_ENDPOINT)
        except (KafkaException, TimeoutError):
            continue
        if entry is not None and entry.value and _refuses(entry.value):
            full.append(int(resource.name))
    return full


def disk_full(nodes: list[int]) -> str:
    """The sentence for ``full_disks``."""
    who = f"broker {nodes[0]}" if len(nodes) == 1 else f"brokers {', '.join(map(str, nodes))}"
    return (
        f"the disk of {who} is full, and producers are refused there until there is space; "
        "'millstream topic trim', retention or another disk make some"
    )


def explain_time_out(client: AdminClient, nodes: Iterable[int], failure: CommandFailed) -> CommandFailed:
    """``failure``, or what is behind it if that is a full disk."""
    full = full_disks(client, nodes)
    return CommandFailed(disk_full(full), "KAFKA_STORAGE_ERROR") if full else failure


def _refuses(endpoint: str) -> bool:
    import urllib.request
    from http.client import HTTPException

    from millstream.cli.broker_http import https_context

    url = f"{endpoint.rstrip('/')}/healthz"
    try:
        context = https_context() if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=_ASK_S, context=context) as answer:  # noqa: S310
            return json.load(answer).get("accepts_writes") is False
    except (OSError, ValueError, AttributeError, RecursionError, HTTPException, CommandFailed):
        return False
