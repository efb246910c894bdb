"""Settings of logins and of access control."""

from __future__ import annotations

import re
from typing import Final

from millstream.config.forms import INT64_MAX, Boolean, Choice, Choices, Integer, Text, UnsupportedValue, Words
from millstream.config.property import Property

_KIB: Final = 1024
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_UNSUPPORTED: Final = {
    "GSSAPI": "Kerberos is not supported; use SCRAM-SHA-256 or SCRAM-SHA-512",
}


class Mechanisms(Choices):
    """SASL mechanisms. Those that Kafka has and Millstream has not are refused with the reason."""

    def __init__(self) -> None:
        super().__init__("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")

    def read_plain(self, text: str) -> tuple[str, ...]:
        for word in text.split(","):
            reason = _UNSUPPORTED.get(word.strip())
            if reason is not None:
                raise UnsupportedValue(reason)
        return super().read_plain(text)


STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Principals(Words):
    """``TYPE:NAME``, several with semicolons, because a name may have commas."""

    separator = ";"

    def split(self, text: str) -> tuple[str, ...]:
        return tuple(word for word in super().split(text) if word)

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        return all(all(word.partition(":")) for word in words)

    def expected(self) -> str:
        return "principals with semicolons, such as User:alice;User:CN=admin,O=Example"


class TopicName(Text):
    """Name of a topic, or nothing."""

    def __init__(self) -> None:
        super().__init__("the name of a topic: letters, digits, dot, dash and underscore, at most 249 of them")

    def read_plain(self, text: str) -> str:
        name = super().read_plain(text)
        if not self.accepts(name):
            raise ValueError
        return name

    def accepts(self, value: object) -> bool:
        return value == "" or (isinstance(value, str) and bool(_TOPIC.fullmatch(value)) and value not in (".", ".."))


class AccessProperties:
    """How clients log in, and what they may do."""

    super_users = Property(
        "super.users",
        Principals(),
        (),
        doc="Principals that may do everything, with semicolons. The broker's own socket file is one, too.",
        example="User:admin;User:CN=operator,O=Example",
    )
    allow_everyone_if_no_acl_found = Property(
        "allow.everyone.if.no.acl.found",
        Boolean(),
        False,
        doc="Whether everybody may do everything to a resource that no access control entry is about.",
    )
    authorizer_class_name = Property(
        "authorizer.class.name",
        Choice("", STANDARD_AUTHORIZER),
        "",
        doc="Access is controlled as soon as a listener demands a login or a certificate. With "
        f"`{STANDARD_AUTHORIZER}` it is controlled in any case; classes of others are refused.",
        default_doc="on with the first listener that authenticates",
    )
    audit_log = Property(
        "audit.log",
        Choice("auto", "on", "off"),
        "auto",
        doc="Whether logins, refusals and changes are recorded in the directory `audit` of the data directory. `auto`: "
        "where access is controlled.",
    )
    audit_log_bytes = Property(
        "audit.log.bytes",
        Integer(_KIB, unit="bytes"),
        16 * _KIB * _KIB,
        doc="Size from which a file of the audit is renamed and a new one is written.",
    )
    audit_log_files = Property(
        "audit.log.files",
        Integer(0, 1_000),
        8,
        doc="How many files of the audit are kept beside the one that is written.",
    )
    audit_on_overflow = Property(
        "audit.on.overflow",
        Choice("count", "refuse"),
        "count",
        doc="What happens when records of the audit come faster than the disk takes them: further ones are counted and "
        "lost, or changes are refused.",
    )

    audit_topic = Property(
        "audit.topic",
        TopicName(),
        "",
        doc="Topic that gets a copy of the audit's records of every broker; it is created if it is missing.",
        example="__audit",
    )

    sasl_enabled_mechanisms = Property(
        "sasl.enabled.mechanisms",
        Mechanisms(),
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        doc="SASL mechanisms of listeners whose protocol is SASL_PLAINTEXT or SASL_SSL. For one listener: "
        "`listener.name.NAME.` before the name.",
        example="SCRAM-SHA-512,PLAIN",
        per_listener=True,
    )
    sasl_server_max_receive_size = Property(
        "sasl.server.max.receive.size",
        Integer(_KIB, 512 * _KIB, unit="bytes"),
        64 * _KIB,
        doc="Maximum size of a request before its connection is logged in. A connection that announces more is closed.",
    )
    connections_max_reauth_ms = Property(
        "connections.max.reauth.ms",
        Integer(0, INT64_MAX, unit="ms"),
        0,
        doc="How long a login by SASL holds. Then the client logs in again over the same connection, or is "
        "disconnected at its next request. 0: for as long as the connection.",
    )
    connection_failed_authentication_delay_ms = Property(
        "connection.failed.authentication.delay.ms",
        Integer(0, 60_000, unit="ms"),
        100,
        doc="How long the answer to a failed login waits, so that guessing passwords takes time.",
    )
