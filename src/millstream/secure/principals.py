"""Principals from the subjects of certificates, by Kafka's ``ssl.principal.mapping.rules``.

::

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?),.*$/$1/,DEFAULT

The first rule whose pattern matches the whole subject decides: its replacement, with ``$1`` for groups, then ``L`` for
lower case or ``U`` for upper case. ``DEFAULT`` takes the subject as it is. A subject that no rule matches, or that
becomes empty, is refused.

Patterns run on RE2, in time linear in the subject: the subject is a stranger's. What RE2 cannot do (look-around, back
references in a pattern) is refused when the broker starts.
"""

import re
from typing import Any, Final, NamedTuple

from millstream.errors import Rejected
from millstream.secure.subject import read_certificate

DEFAULT: Final = "DEFAULT"
PRINCIPAL_CHARACTERS_MAX: Final = 4096

# A rule, then a comma or the end. Kafka's own (SslPrincipalMapper); it reads settings, never a client's bytes.
_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class _Rule(NamedTuple):
    pattern: Any  # of RE2; None: DEFAULT
    replacement: str
    case: str


class PrincipalRules:
    """The rules of one listener. Immutable."""

    def __init__(self, text: str) -> None:
        """Read ``ssl.principal.mapping.rules``.

        Raises:
            Rejected: a rule is not of its form, or not for RE2.
        """
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise Rejected(f"{text[at:].strip()!r} is no rule, expected RULE:pattern/replacement/[LU] or DEFAULT")
            at = found.end()
            if found[1]:
                self._rules.append(_Rule(None, "", ""))
                continue
            pattern = _compiled(found[2])
            for reference in _REFERENCE.finditer(found[3]):
                if reference[2] and int(reference[2]) > pattern.groups:
                    raise Rejected(f"{found[3]!r} names group {reference[2]}, the pattern has {pattern.groups}")
            self._rules.append(_Rule(pattern, found[3], found[4]))
        if not self._rules:
            self._rules.append(_Rule(None, "", ""))

    def name(self, subject: str) -> str:
        """The user's name for a subject.

        Raises:
            Rejected: no rule matches, or nothing is left of the subject.
        """
        for rule in self._rules:
            name: str | None = subject if rule.pattern is None else _apply(rule, subject)
            if name is None:
                continue
            if not name or len(name) > PRINCIPAL_CHARACTERS_MAX:
                raise Rejected("the certificate's subject gives no principal")
            return name
        raise Rejected(f"no rule of ssl.principal.mapping.rules matches the subject {subject[:200]!r}")

    def principal(self, der: bytes) -> str:
        """The principal of a client that has shown this certificate.

        Raises:
            Rejected: the certificate has no subject that the rules take.
        """
        subject = read_certificate(der).subject
        if not subject:
            raise Rejected("the certificate has an empty subject")
        return f"User:{self.name(subject)}"


def _compiled(expression: str) -> Any:
    import re2  # pyright: ignore[reportMissingTypeStubs]

    options: Any = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        raise Rejected(f"RE2 does not take the pattern {expression!r}: {error}") from None


def _apply(rule: _Rule, subject: str) -> str | None:
    found = rule.pattern.fullmatch(subject)
    if found is None:
        return None

    def value(reference: "re.Match[str]") -> str:
        return reference[1] or found.group(int(reference[2])) or ""

    name = _REFERENCE.sub(value, rule.replacement)
    return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
