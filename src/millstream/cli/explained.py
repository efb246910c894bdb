"""The sentences that errors of brokers become.

Codes without a special remedy are shown with the message of the broker. Where no broker answers, a look at the address
says whether something else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cli.failure import CommandFailed
from millstream.cli.what_answers import KAFKA_PORT, Found, unreached, what_answers, with_port

if TYPE_CHECKING:
    from millstream.cli.confluent import KafkaError
    from millstream.errors import MillstreamError

UNREACHABLE = frozenset(
    {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE"}
)

_NO_TOPIC = "there is no {what}; 'millstream topic list' shows what exists, 'millstream topic create' makes one"
_SENTENCES = {
    "UNKNOWN_TOPIC_OR_PART": _NO_TOPIC,
    "_UNKNOWN_TOPIC": _NO_TOPIC,
    "_UNKNOWN_PARTITION": "there is no such partition of {what}; 'millstream topic describe' shows those it has",
    "TOPIC_ALREADY_EXISTS": "{what} already exists; --if-not-exists accepts that, 'millstream topic alter' changes it",
    "GROUP_ID_NOT_FOUND": "there is no {what}; 'millstream group list' shows those that exist",
    "UNKNOWN_MEMBER_ID": "{what} has active members; stop its consumers first",
    "NON_EMPTY_GROUP": "{what} has active members; stop its consumers first",
    "MSG_SIZE_TOO_LARGE": "a record is larger than {what} allows; 'millstream topic alter' can raise max.message.bytes",
    "INVALID_PARTITIONS": "{what}: {reason}; give --partitions a larger number, since partitions are only ever added",
    "TOPIC_EXCEPTION": "{what}: {reason}; choose another name",
    "INVALID_REPLICATION_FACTOR": "{what}: {reason}; give --replication a number up to that of the brokers, which "
    "'millstream cluster brokers' lists",
    "NOT_CONTROLLER": "{what}: the cluster has no controller now, because too few brokers are alive; 'millstream "
    "cluster health' says which to start",
    "CLUSTER_AUTHORIZATION_FAILED": "the broker does not allow this; it needs other credentials",
}


def unreachable(bootstrap: str, reason: str) -> CommandFailed:
    """No broker answers at ``bootstrap``."""
    first = with_port(bootstrap.partition(",")[0].strip())
    return CommandFailed(
        f"no broker answers at {bootstrap} ({reason}); start one with 'millstream start --listen {first}', or name "
        "another with --bootstrap HOST:PORT"
    )


def silent(bootstrap: str, reason: str) -> CommandFailed:
    """No broker answers at ``bootstrap`` in Kafka's protocol: none is there, or something else has the port."""
    found = what_answers(bootstrap)
    if found is Found.NOTHING:
        return unreachable(bootstrap, reason)
    if found is Found.HTTP:
        return _another_port(bootstrap)
    why = unreached(bootstrap) or "is it the Kafka port? Or the broker names an address that is not reached from here"
    return CommandFailed(
        f"{bootstrap} takes connections, but no broker answers ({reason}); {why}: see advertised.listeners"
    )


def mistaken(bootstrap: str) -> CommandFailed | None:
    """Why no broker will ever answer at ``bootstrap``: HTTP is there. None if that is not so."""
    return _another_port(bootstrap) if what_answers(bootstrap) is Found.HTTP else None


def _another_port(bootstrap: str) -> CommandFailed:
    return CommandFailed(
        f"{bootstrap} answers HTTP, not Kafka's protocol; give the broker's Kafka port ({KAFKA_PORT} unless it was "
        "set), which its ready line and broker.json name as bootstrap"
    )


def no_answer(bootstrap: str, timeout_s: float) -> CommandFailed:
    """The broker at ``bootstrap`` took longer than it was given."""
    return silent(bootstrap, f"no answer within {timeout_s:g} s")


def explain(error: KafkaError, what: str, bootstrap: str) -> CommandFailed:
    """The sentence for a Kafka error met while working on ``what`` (such as "topic 'orders'")."""
    name = error.name()
    if name in UNREACHABLE:
        return silent(bootstrap, error.str().removeprefix("Local: "))
    reason = error.str().strip()
    if reason.endswith(":"):  # the broker said no more than its code
        reason += f" {type(error)(error.code()).str().removeprefix('Broker: ')}"
    reason = reason.removeprefix("Broker: ").rstrip(".")
    template = _SENTENCES.get(name, "{what}: {reason}")
    return CommandFailed(template.format(what=what, reason=reason), name)


def explain_error(error: MillstreamError, what: str, bootstrap: str) -> CommandFailed:
    """The sentence for an error of the project's own client."""
    name = error.code.name
    if name in ("NETWORK_EXCEPTION", "REQUEST_TIMED_OUT"):
        return silent(bootstrap, error.message)
    template = _NO_TOPIC if name in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID") else "{what}: {reason}"
    return CommandFailed(template.format(what=what, reason=error.message), name)
