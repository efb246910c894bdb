"""librdkafka's test of every admin operation, 0081, one operation at a time.

As a whole it cannot pass here, nor on an Apache Kafka without an authorizer: some of its operations want access control
lists, and are in ``librdkafka-secured``. The runner can be told to run the subtests of one name, which tells of each
operation by itself. In full, not in the runner's quick mode, which leaves most of the operations out.
"""

import concurrent.futures
from collections.abc import Iterator

from conformance import brokers, tools
from conformance.librdkafka import KAFKA_VERSION, Librdkafka, outcomes
from conformance.librdkafka import Entry as Test
from conformance.lists import Outcome
from conformance.suite import Context

NAME = "0081_admin"
LIMIT_S = 180.0
OPERATIONS = (
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "DescribeTopics", "DescribeCluster", "DeleteRecords"),
    *("DescribeConfigs", "ListOffsets"),
    *("DeleteGroups", "ListConsumerGroups", "DescribeConsumerGroups", "DeleteConsumerGroupOffsets"),
    *("AlterConsumerGroupOffsets", "ListConsumerGroupOffsets", "unclean_destroy"),
)
SECURED_OPERATIONS = ("AlterConfigs", "IncrementalAlterConfigs", "UserScramCredentials", "CreateAcls")
"""What needs logins or access control on the broker: ``librdkafka-secured`` runs it."""


class LibrdkafkaAdmin(Librdkafka):
    """A test is the subtests of one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "librdkafka-admin"
        self.about = "librdkafka's test of admin operations"
        self.fast = False

    def names(self) -> list[str]:
        return list(OPERATIONS)

    def run(self, context: Context) -> Iterator[Outcome]:
        with context.broker() as broker, concurrent.futures.ThreadPoolExecutor(context.jobs) as pool:
            chosen = [operation for operation in OPERATIONS if operation in context.chosen]
            waiting = [pool.submit(self._operation, context, broker, operation) for operation in chosen]
            try:
                for done in concurrent.futures.as_completed(waiting):
                    yield done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _operation(self, context: Context, broker: brokers.Served, operation: str) -> Outcome:
        broker.revive()
        context.say(operation)
        place = context.scratch / operation
        place.mkdir()
        (place / "test.conf").write_text(self.configuration(context, broker, "0081"), encoding="utf-8")
        log = context.logs / f"{operation}.log"
        log.unlink(missing_ok=True)
        environment = {
            "LD_LIBRARY_PATH": f"{self.folder / 'src'}:{self.folder / 'src-cpp'}",
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "RDKAFKA_TEST_CONF": str(place / "test.conf"),
            "TEST_REPORT": str(place / "report.json"),
            "TESTS": "0081",
            "SUBTESTS": f"do_test_{operation}",
        }
        limit_s = LIMIT_S * context.patience
        runner = [str(self.folder / "tests" / "test-runner"), "-p1", "-L", "-E"]
        code = tools.run_capped(runner, log, limit_s, place, environment)
        said = log.read_text(encoding="utf-8", errors="replace")
        test = Test(NAME, sockets=False, scenario="default")
        (found,) = outcomes([test], place / "report.json", said, code, limit_s)
        return Outcome(operation, found.state, found.seconds, found.reason)
