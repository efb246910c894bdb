"""A member of a Kafka Streams application, request by request: what it was told to run, it runs."""

from millstream.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTopicInfo,
    StreamsTopology,
)
from waits import until

GROUP = "counter"
COMPACTED = [StreamsKeyValue("cleanup.policy", "compact")]
TOPOLOGY = StreamsTopology(
    0,
    [
        StreamsSubtopology("0", ["words"], repartition_sink_topics=["counter-by-word"]),
        StreamsSubtopology(
            "1",
            state_changelog_topics=[StreamsTopicInfo("counter-counts", topic_configs=COMPACTED)],
            repartition_source_topics=[StreamsTopicInfo("counter-by-word")],
        ),
    ],
)
SETTINGS = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "100",
}


class App:
    """One member, which always says which tasks it has."""

    def __init__(self, name, process="p"):
        self.name = name
        self.process = process
        self.epoch = 0
        self.active, self.standby = [], []

    def beat(self, line, **more):
        joins = self.epoch == 0
        if joins:
            self.active, self.standby = [], []
            more |= {"topology": TOPOLOGY, "rebalance_timeout_ms": 60_000, "process_id": self.process}
        told = StreamsGroupHeartbeatRequest(
            GROUP,
            self.name,
            self.epoch,
            active_tasks=self.active,
            standby_tasks=self.standby,
            warmup_tasks=[],
            **more,
        )
        answer = line.ask(told)
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.active_tasks is not None:
                self.active, self.standby = answer.active_tasks, answer.standby_tasks
        return answer

    def tasks(self):
        return {(one.subtopology_id, index) for one in self.active for index in one.partitions}


ALL = {("0", 0), ("0", 1), ("0", 2), ("1", 0), ("1", 1), ("1", 2)}


def running(line, *apps):
    """Each app sends heartbeats until together they run every task."""

    def look():
        for app in apps:
            answer = app.beat(line)
            assert answer.error_code in (0, 14, 15, 16), answer  # a coordinator that loads, after a restart
        held = [task for app in apps for task in app.tasks()]
        return sorted(held) == sorted(ALL)

    until(look, lambda: [app.tasks() for app in apps])
