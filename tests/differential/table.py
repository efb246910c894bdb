"""The cases: what each is called, which API it is about, at which versions it runs.

A case is a function that holds a ``Talk``::

    @case("a topic with no partitions", CreateTopicsRequest)
    def _(t):
        t.ask(CreateTopicsRequest([CreatableTopic(name=t.name("a"), num_partitions=0)]))

``simple`` declares those that are one request and perhaps a look. One case at one version is one input. Cases of an API
run only when the broker serves it, so they may be written before.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from differential.talk import Talk
from millstream.kafka.served import SERVED
from millstream.wire.apis import APIS
from millstream.wire.schema import Request

EVERY_VERSION = "a good request"
"""The case that covers every version of every API."""

Script = Callable[[Talk], None]


class Case(NamedTuple):
    """One case; ``slow`` ones wait for timers, ``made`` ones were made by rule for every API (``cases.frames``)."""

    name: str
    api_key: int
    versions: tuple[int, ...]
    script: Script
    slow: bool = False
    made: bool = False

    @property
    def api(self) -> str:
        return APIS[self.api_key].name

    @property
    def title(self) -> str:
        return f"{self.api}: {self.name}"


class Input(NamedTuple):
    """A case at a version."""

    case: Case
    version: int

    @property
    def id(self) -> str:
        return f"{self.case.title} v{self.version}"


_cases: dict[str, Case] = {}


def case(
    name: str, api: type[Request], versions: Iterable[int] | None = None, *, slow: bool = False, made: bool = False
) -> Callable[[Script], Script]:
    """Declares a case; without ``versions`` it runs at every version that is declared."""

    def declare(script: Script) -> Script:
        low, high = APIS[api.API_KEY].versions
        wanted = tuple(range(low, high + 1) if versions is None else [v for v in versions if low <= v <= high])
        declared = Case(name, api.API_KEY, wanted, script, slow, made)
        assert declared.title not in _cases, f"two cases are called {declared.title}"
        _cases[declared.title] = declared
        return script

    return declare


def simple(
    name: str,
    build: Callable[[Talk], Request],
    api: type[Request],
    versions: Iterable[int] | None = None,
    after: Callable[[Talk], Any] | None = None,
) -> None:
    """A case of one request; ``after`` looks at the effect."""

    def script(t: Talk) -> None:
        t.ask(build(t))
        if after is not None:
            after(t)

    case(name, api, versions)(script)


def all_cases() -> list[Case]:
    """Every case of the APIs that are served, from every file of ``cases/``."""
    package = importlib.import_module("differential.cases")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"differential.cases.{module}")
    return [one for one in _cases.values() if one.api_key in SERVED]


def all_inputs(pattern: str = "", *, slow: bool = True) -> list[Input]:
    """Every case at every version; ``pattern`` is a part of the title."""
    return [
        Input(one, version)
        for one in all_cases()
        if pattern.lower() in one.title.lower() and (slow or not one.slow)
        for version in one.versions
    ]


def few(inputs: Iterable[Input]) -> list[Input]:
    """A choice that is played in seconds: each case at its lowest and highest version, frames at the highest alone,
    good requests at every one.
    """
    return [at for at in inputs if at.version in _chosen(at.case)]


def _chosen(one: Case) -> tuple[int, ...]:
    if one.name == EVERY_VERSION:
        return one.versions
    return one.versions[-1:] if one.made else (one.versions[0], one.versions[-1])
