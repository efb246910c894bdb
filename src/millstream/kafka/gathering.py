"""Collects the answers of many partitions, some on other shards, into one response.

Each question is answered exactly once, in this turn or a later one. A partition that cannot be asked is answered with
its error.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def gather(
    questions: Sequence[Question],
    ask: Callable[[Question, Callable[[Answer], None]], None],
    done: Callable[[list[Answer]], None],
) -> Callable[[Answer], None]:
    """Ask every question with ``ask``. ``done`` gets the answers in the order of the questions.

    Returns what gives one answer to all questions that have none yet; what they are answered later is dropped.
    """
    answers: dict[int, Answer] = {}

    def answered(slot: int, answer: Answer) -> None:
        if slot in answers:
            return
        answers[slot] = answer
        if len(answers) == len(questions):
            done([answers[each] for each in range(len(questions))])

    def settle(answer: Answer) -> None:
        for slot in range(len(questions)):
            answered(slot, answer)

    if not questions:
        done([])
    for slot, question in enumerate(questions):
        ask(question, partial(answered, slot))
    return settle
