"""Answers about groups and partitions, for requests that may name one of them many times.

Each is asked about once however often it is named, and told as often, as Apache Kafka does. A request of some kilobytes
could have a large group told thousands of times; so what is told again is bounded by ``REPEATED_BYTES_MAX`` in one
answer, and repeats beyond it are refused with UNKNOWN_SERVER_ERROR. What is named once is always told.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from millstream.wire.schema import Message

Name = TypeVar("Name", bound=Hashable)
Answer = TypeVar("Answer", bound=Message)

REPEATED_BYTES_MAX: Final = 1 << 20
REFUSAL: Final = "The request names it so often that the answer would be too large."

_encode = msgspec.msgpack.Encoder().encode


def tell(names: Sequence[Name], told: Mapping[Name, Answer], refused: Callable[[Name], Answer]) -> list[Answer]:
    """The answer of each name in `told`, in the order of `names`; `refused(name)` in the place of repeats too many."""
    if len(told) == len(names):
        return [told[name] for name in names]
    answers: list[Answer] = []
    sizes: dict[Name, int] = {}
    left = REPEATED_BYTES_MAX
    for name in names:
        answer = told[name]
        if name not in sizes:
            sizes[name] = 0  # of most nobody needs to know it
        else:
            sizes[name] = sizes[name] or len(_encode(answer))
            left -= sizes[name]
            if left < 0:
                answer = refused(name)
        answers.append(answer)
    return answers
