"""Kinds of what the console lists, by the words of its pages: shared by the pages and the broker that hosts them."""

from typing import Final

TOPIC: Final = "topic"
GROUP: Final = "group"
TRANSACTIONAL_ID: Final = "transactional id"
