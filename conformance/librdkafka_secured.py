"""librdkafka's tests of logins, rights and SCRAM credentials, against a broker with TLS, logins and access control.

Its runner takes one way of connecting from its file: here SASL_SSL with SCRAM-SHA-512, as a user with no more rights
than everybody has; the tests that ``CLEAR`` names are for a cluster with rights and without logins. Tests set rights by
Kafka's own ``kafka-acls.sh``, which logs in as a superuser where logins are demanded. Operations of its admin test are
run one by one, as in ``librdkafka-admin``.
"""

import concurrent.futures
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from conformance import brokers
from conformance.librdkafka import Librdkafka, write_scripts
from conformance.librdkafka_admin import SECURED_OPERATIONS, LibrdkafkaAdmin
from conformance.lists import Outcome
from conformance.secured import Secured, secured
from conformance.suite import Context

CLEAR = ("0115", "0119")
RIGHTS = ("0109", *CLEAR)
NUMBERS = ("0097", "0109", "0115", "0119", "0126", "0135", "0142")
USERS = {"admin": "word-of-admin-1", "tester": "word-of-tester-2"}
MECHANISM = "SCRAM-SHA-512"
SETTINGS = {"super.users": "User:admin", "connections.max.reauth.ms": "10000"}


class Listening:
    """The listener that the tests use. The tests do not stop the broker; ``secured`` judges it."""

    def __init__(self, where: Secured, protocol: str) -> None:
        self.bootstrap = where.addresses[protocol]

    def kill(self) -> None:
        """No test does that."""
        raise NotImplementedError

    restart = hand_over = kill

    def revive(self) -> bool:
        """A broker that ended shows in its log."""
        return False

    def complaints(self) -> list[str]:
        """``secured`` has them."""
        return []


class LibrdkafkaSecured(LibrdkafkaAdmin):
    """Tests by name, and operations."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "librdkafka-secured"
        self.about = "librdkafka's tests of logins and rights"
        self._ca = Path()

    def names(self) -> list[str]:
        """The tests of security, then the operations."""
        tests = [name for name in Librdkafka.names(self) if name.split("_", 1)[0] in NUMBERS]
        return [*tests, *SECURED_OPERATIONS]

    def configuration(self, context: Context, broker: brokers.Served, number: str) -> str:
        """As the others', with TLS and a login."""
        if number in CLEAR:
            return super().configuration(context, broker, number)
        return super().configuration(context, broker, number) + (
            f"security.protocol=SASL_SSL\nssl.ca.location={self._ca}\nsasl.mechanism={MECHANISM}\n"
            f"sasl.username=tester\nsasl.password={USERS['tester']}\n"
        )

    def modes_of(self, number: str) -> tuple[str, ...]:
        """In full where quick mode leaves out what is about rights. In full, the others want three brokers."""
        return ("",) if number in RIGHTS else ("-Q", "")

    def run(self, context: Context) -> Iterator[Outcome]:
        chosen = [entry for entry in self.entries if entry.name in context.chosen]
        log = context.logs / "broker.log"
        with secured(context.scratch, USERS, log, context.complaints, SETTINGS) as where:
            broker, self._ca = Listening(where, "SASL_SSL"), where.keys / "ca.pem"
            kafka_path = write_scripts(context.scratch / "kafka")
            log_in_as_admin(kafka_path / "bin" / "kafka-acls.sh", self._ca)
            yield from self._scenario(context, broker, kafka_path, [e for e in chosen if e.number not in CLEAR])
            clear, clear_path = Listening(where, "PLAINTEXT"), write_scripts(context.scratch / "clear")
            yield from self._scenario(context, clear, clear_path, [e for e in chosen if e.number in CLEAR])
            with concurrent.futures.ThreadPoolExecutor(context.jobs) as pool:
                operations = [name for name in SECURED_OPERATIONS if name in context.chosen]
                yield from pool.map(partial(self._operation, context, broker), operations)


def log_in_as_admin(script: Path, ca_path: Path) -> None:
    """Let a script of a Kafka installation log in."""
    properties = script.with_suffix(".properties")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    properties.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={ca_path}\n"
        f"sasl.mechanism={MECHANISM}\n"
        f'sasl.jaas.config={module} required username="admin" password="{USERS["admin"]}";\n',
        encoding="utf-8",
    )
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace('"$@"', f"\"$@\" --command-config '{properties}'"), encoding="utf-8")
