"""Limits of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.tune.finding import Check, Seen, good, impossible, off, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _least(facts: Facts, words: str, least: int, how: str) -> Seen:
    value = facts.limit(words)
    if value is None:
        return impossible("the limits of this process cannot be read")
    if value < 0 or value >= least:
        return good("unlimited" if value < 0 else value)
    return off(value, least, how)


def _files(facts: Facts) -> Seen:
    return _least(facts, "Max open files", 65_536, "LimitNOFILE=65536 in the unit, or 'ulimit -Hn 65536'")


def _locked(facts: Facts) -> Seen:
    if not facts.broker.locks_memory:
        return unneeded("memory.lock is false")
    return _least(facts, "Max locked memory", facts.broker.memory_bytes, "LimitMEMLOCK=infinity in the unit")


def _realtime(facts: Facts) -> Seen:
    if not facts.broker.realtime:
        return unneeded("shards.realtime is false")
    return _least(facts, "Max realtime priority", 1, "LimitRTPRIO=1 in the unit, without RestrictRealtime")


FILES = Check("nofile", "Each connection and each open segment takes a descriptor.", _files)
LOCKED = Check("memlock", "memory.lock keeps the whole budget in RAM.", _locked)
REALTIME = Check("rtprio", "shards.realtime needs the right to it.", _realtime)
