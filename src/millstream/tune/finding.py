"""What a check says: one of five outcomes, the values, and the writes that would mend it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.tune.facts import Facts


class Outcome(enum.StrEnum):
    """How a setting of the machine stands."""

    GOOD = "good"
    OFF = "off"
    APPLIED = "applied"
    IMPOSSIBLE = "not possible here"
    UNNEEDED = "not needed"


class Write(msgspec.Struct, frozen=True):
    """A file to be written, relative to the root. ``link``: a symbolic link to ``text`` instead."""

    path: str
    text: str
    link: bool = False


class Seen(msgspec.Struct, frozen=True):
    """What a check's ``look`` returns. ``writes`` is empty where the operator must act; ``reason`` then says how."""

    outcome: Outcome
    value: str = ""
    wanted: str = ""
    reason: str = ""
    writes: tuple[Write, ...] = ()


class Check(msgspec.Struct, frozen=True):
    """A check. ``rpk``: the tuners of Redpanda's rpk that it covers.

    ``advice``: no measurement of this project has shown that it pays. ``--apply`` leaves it, unless with ``--all``.
    """

    name: str
    why: str
    look: Callable[[Facts], Seen]
    rpk: tuple[str, ...] = ()
    advice: bool = False


class Finding(msgspec.Struct, frozen=True):
    """A check and what it saw."""

    name: str
    rpk: tuple[str, ...]
    why: str
    advice: bool
    seen: Seen


def described(one: Finding) -> dict[str, Any]:
    """A finding for programs."""
    return {
        "name": one.name,
        "outcome": str(one.seen.outcome),
        "value": one.seen.value,
        "wanted": one.seen.wanted,
        "reason": one.seen.reason,
        "why": one.why,
        "advice": one.advice,
        "rpk": list(one.rpk),
        "writes": [{"path": f"/{write.path}", "text": write.text} for write in one.seen.writes],
    }


def good(value: object) -> Seen:
    """The value is as wanted."""
    return Seen(Outcome.GOOD, str(value))


def off(value: object, wanted: object, reason: str = "", *writes: Write) -> Seen:
    """The value is not as wanted."""
    return Seen(Outcome.OFF, str(value), str(wanted), reason, writes)


def impossible(reason: str) -> Seen:
    """This machine has no such thing, or it is not ours to set."""
    return Seen(Outcome.IMPOSSIBLE, reason=reason)


def unneeded(reason: str, value: object = "") -> Seen:
    """The broker does not need it."""
    return Seen(Outcome.UNNEEDED, str(value), reason=reason)


HOST = "the kernel is the host's: run 'millstream tune' there"


def sysctl(facts: Facts, name: str, wanted: int, is_good: Callable[[int], bool], *, of_host: bool = True) -> Seen:
    """A kernel parameter, named as ``sysctl`` names it. ``of_host``: containers have no value of their own."""
    path = f"proc/sys/{name.replace('.', '/')}"
    value = facts.number(path)
    if value is None:
        return impossible(f"this kernel has no {name}")
    if is_good(value):
        return good(value)
    if of_host and facts.in_container:
        return impossible(f"{name} is {value}; {HOST}")
    return off(value, wanted, "", Write(path, f"{wanted}\n"))
