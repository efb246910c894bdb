"""Paths of fields that the console masks: ``[TOPICS/]ROOT[.STEP…]``, as ``console.masks`` has them."""

import re
from typing import Final

from millstream.config.forms import Words

_MASK: Final = re.compile(r"(?:([\w.*?-]{1,249})/)?(key|value|headers)((?:\.[^\s.,/]+)*)")


def split_mask(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Pattern of topics' names, root, steps. Raises ValueError if the text is no mask."""
    found = _MASK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no mask, expected [TOPICS/]key|value|headers[.FIELD…]")
    return found[1] or "*", found[2], tuple(found[3].split(".")[1:])


class Masks(Words):
    """Masks, several with commas; may be empty."""

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        return all(_MASK.fullmatch(word) for word in words)

    def expected(self) -> str:
        return "nothing, or paths with commas, such as value.card.number,headers.authorization,customers/value.email"
