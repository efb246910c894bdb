"""Every suite, in the order in which they run: quick ones first."""

from typing import Final

from conformance.clients import Clients
from conformance.connect import Connect
from conformance.franz_go import FranzGo
from conformance.java_apps import Streams
from conformance.java_tools import JavaTools
from conformance.kafka_integration import KafkaIntegration, KafkaStreams
from conformance.kafka_python import KafkaPython
from conformance.kcat import Kcat
from conformance.librdkafka import Librdkafka
from conformance.librdkafka_admin import LibrdkafkaAdmin
from conformance.librdkafka_cluster import LibrdkafkaCluster
from conformance.librdkafka_secured import LibrdkafkaSecured
from conformance.librdkafka_share import LibrdkafkaShare
from conformance.mirror_maker import MirrorMaker
from conformance.suite import Suite
from conformance.transactions import Transactions

ALL: Final[list[Suite]] = [
    Clients(),
    Kcat(),
    KafkaPython(),
    JavaTools(),
    Connect(),
    MirrorMaker(),
    Streams(),
    Transactions(),
    Librdkafka(),
    LibrdkafkaCluster(),
    LibrdkafkaAdmin(),
    LibrdkafkaSecured(),
    Librdkafka("consumer"),
    LibrdkafkaShare(),
    FranzGo(),
    KafkaIntegration(),
    KafkaStreams(),
]
