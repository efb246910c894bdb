"""Plays inputs against brokers, several at once; every input has names of its own."""

import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from differential.recording import comparable
from differential.table import Input
from differential.talk import Peer, Talk

WORKERS = 6


class Played(NamedTuple):
    """What was seen, and what is wrong with the harness or with how an answer is written."""

    seen: Mapping[str, Any]
    checks: list[str]


def play(at: Input, peer: Peer, texts: bool = False) -> Played:
    """One input against one broker."""
    try:
        t = Talk(peer, at.version, at.case.api_key, texts)
    except OSError as error:
        return Played({"1 failed": f"{peer.name} cannot be reached: {error}"}, [])
    try:
        at.case.script(t)
        t.probe()
    except Exception as error:  # noqa: BLE001 - a case that cannot go on is a finding, not the end of the run
        where = traceback.extract_tb(error.__traceback__)[-1]
        t.note("failed", f"{type(error).__name__}: {t.names.text(str(error))[:300]} (line {where.lineno})")
    finally:
        t.close()
    return Played(comparable(t.seen()), t.checks)


def play_all(
    inputs: Iterable[Input],
    peers: Iterable[Peer],
    done: Callable[[Input], None] = lambda _: None,
    *,
    texts: bool = False,
    workers: int = WORKERS,
) -> dict[Input, list[Played]]:
    """Every input against every broker."""
    peers = list(peers)

    def one(at: Input) -> tuple[Input, list[Played]]:
        played = [play(at, peer, texts) for peer in peers]
        done(at)
        return at, played

    with ThreadPoolExecutor(workers) as pool:
        return dict(pool.map(one, inputs))
