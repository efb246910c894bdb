"""Responses about groups and partitions for requests that may name one of them many times.

Each is looked up once and listed as often as it is named, as in Apache Kafka. A request of some kilobytes could list a
large group thousands of times; repeats are therefore limited to ``REPEATED_BYTES_MAX`` per response, and further ones
are refused with UNKNOWN_SERVER_ERROR. The first mention is always answered.
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


def tell(names: Sequence[Name], known: Mapping[Name, Answer], refused: Callable[[Name], Answer]) -> list[Answer]:
    """The answer for each name, in the order of ``names``; ``refused(name)`` for repeats beyond the limit."""
    if len(known) == len(names):
        return [known[name] for name in names]
    answers: list[Answer] = []
    sizes: dict[Name, int] = {}
    left = REPEATED_BYTES_MAX
    for name in names:
        answer = known[name]
        if name not in sizes:
            sizes[name] = 0  # most sizes are never needed
        else:
            sizes[name] = sizes[name] or len(_encode(answer))
            left -= sizes[name]
            if left < 0:
                answer = refused(name)
        answers.append(answer)
    return answers
