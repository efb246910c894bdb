"""Every suite, in the order in which they run: quick ones first."""

from typing import Final

from conformance.kafka_python import KafkaPython
from conformance.librdkafka import Librdkafka
from conformance.suite import Suite

ALL: Final[list[Suite]] = [KafkaPython(), Librdkafka(), Librdkafka("consumer")]
