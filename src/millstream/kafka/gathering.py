"""Collects the answers of many partitions, some on other shards, into one response.

Each question is answered exactly once, in this turn or a later one. A partition that cannot be asked is answered with
its error.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def gather(
    questions: Sequence[Question],
    ask: Callable[[Question, Callable[[Answer], None]], None],
    done: Callable[[list[Answer]], None],
) -> None:
    """Ask every question with ``ask``. ``done`` gets the answers in the order of the questions."""
    answers: dict[int, Answer] = {}
    if not questions:
        done([])
    for slot, question in enumerate(questions):

        def answered(answer: Answer, slot: int = slot) -> None:
            answers[slot] = answer
            if len(answers) == len(questions):
                done([answers[each] for each in range(len(questions))])

        ask(question, answered)
