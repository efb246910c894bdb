"""Kafka's numbers of access control entries (KIP-140, KIP-290), and the names that people use for them."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

_Number = TypeVar("_Number", bound=IntEnum)


class ResourceType(IntEnum):
    """What an entry is about. ``ANY`` is for filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a name is meant. ``ANY`` and ``MATCH`` are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done. ``ANY`` is for filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an entry allows or denies. ``ANY`` is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


def by_name(numbers: Iterable[_Number]) -> dict[str, _Number]:
    """The numbers by their names in commands and pages, such as ``describe-configs``, in the given order."""
    return {one.name.lower().replace("_", "-"): one for one in numbers}


def name_of(table: Mapping[str, int], number: int) -> str:
    """The name of a number in a table of ``by_name``; digits if it has none there."""
    return next((name for name, found in table.items() if found == number), str(number))
