"""Secrets in text that leaves the machine: what is taken out, and how.

A word that names a secret (password, token, key …) hides the value behind it, in properties, JSON, YAML, command lines
and URLs alike. So do the forms that secrets have by themselves: PEM keys, JSON web tokens, Authorization headers, user
and password in a URL. More is hidden rather than less: a value that only looks like a secret is no loss.
"""

import re
from typing import Any, Final, cast

HIDDEN: Final = "[redacted]"

_NAMES: Final = (
    r"(?:[\w.\-]*(?:password|passwd|passphrase|secret|token|credential|jaas|api[_.\-]?key|access[_.\-]?key"
    r"|account[_.\-]?key|private[_.\-]?key|keystore[_.\-]key|signature)[\w.\-]*|\bsas\b|\bsig\b)"
)
_PEM: Final = re.compile(r"-----[A-Z ]+PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_PAIR: Final = re.compile(
    rf"""(?P<name>["']?{_NAMES}["']?\s*[=:]\s*)(?P<value>"(?:\\.|[^"\\])*"|'[^']*'|[^\s,;&}}\])]+)""", re.IGNORECASE
)
_OPTION: Final = re.compile(rf"(?P<name>--{_NAMES}\s+)(?P<value>[^\s-]\S*)", re.IGNORECASE)
_HEADER: Final = re.compile(r"(?P<name>\b(?:Basic|Bearer)\s+)[A-Za-z0-9+/=._~\-]{6,}", re.IGNORECASE)
_TOKEN: Final = re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*")
_USERINFO: Final = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.\-]*://)[^\s/@\"']+@", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(_NAMES, re.IGNORECASE)


def redacted(text: str) -> str:
    """The text without what may be a secret."""
    text = _PEM.sub(HIDDEN, text)
    text = _PAIR.sub(_hidden_value, text)
    text = _OPTION.sub(lambda found: f"{found['name']}{HIDDEN}", text)
    text = _HEADER.sub(lambda found: f"{found['name']}{HIDDEN}", text)
    text = _TOKEN.sub(HIDDEN, text)
    return _USERINFO.sub(lambda found: f"{found['scheme']}{HIDDEN}@", text)


def redacted_document(value: Any, *, secret: bool = False) -> Any:
    """A JSON document likewise; a key that names a secret hides all texts below it."""
    if isinstance(value, dict):
        return {
            str(key): redacted_document(each, secret=secret or _SECRET_NAME.fullmatch(str(key)) is not None)
            for key, each in cast("dict[Any, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [redacted_document(each, secret=secret) for each in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    return HIDDEN if secret and value else redacted(value)


def _hidden_value(found: re.Match[str]) -> str:
    value = found["value"]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{found['name']}{quote}{HIDDEN}{quote}"
