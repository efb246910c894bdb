"""What tests of the coordinator of groups share: the topics of a cluster, and a clock, a log and a coordinator."""

from itertools import count

from millstream.core.group.coordinator import GroupCoordinator
from millstream.core.group.outputs import DeadlinePassed
from millstream.core.group.topics import Topic


class Topics:
    """A topic that is created again has another id, unless the test gives the id."""

    def __init__(self, **partitions):
        self.revision = self.created_revision = 1
        self.topics = {}
        self._ids = count(1)
        for name, number in partitions.items():
            self.put(name, number)

    def put(self, name, partitions, topic_id=None):
        """Create a topic, or change the topic of that name."""
        known = self.topics.get(name)
        self.revision += 1
        if known is None:
            self.created_revision = self.revision
        if topic_id is None:
            topic_id = next(self._ids).to_bytes(16, "big") if known is None else known.topic_id
        self.topics[name] = Topic(name, topic_id, partitions)

    def grow(self, name):
        self.put(name, self.topics[name].partitions + 1)

    def delete(self, name):
        self.revision += 1
        del self.topics[name]

    def by_name(self, name):
        return self.topics.get(name)

    def by_id(self, topic_id):
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def names(self):
        return tuple(self.topics)


class Stepper:
    """A coordinator with a clock and a log. Who inherits has ``take``, for what a step gives."""

    def __init__(self, settings, **options):
        self.settings = settings
        self.options = options
        self.coordinator = GroupCoordinator(settings, **options)
        self.ms = 1_000
        self.log = []
        """Durable records."""
        self.held = []
        """Writes that are not durable yet."""

    @property
    def now_us(self):
        return self.ms * 1000

    def step(self, given):
        self.take(self.coordinator.step(given, self.now_us, self.ms))

    def advance(self, ms):
        """Let time pass, stopping at every deadline on the way."""
        end = self.ms + ms
        while (due := self.coordinator.deadline_us) is not None and due <= end * 1000:
            self.ms = max(self.ms, -(-due // 1000))
            self.step(DeadlinePassed())
        self.ms = end

    def successor(self):
        """A coordinator that has read the durable log."""
        fresh = GroupCoordinator(self.settings, **self.options)
        for key, value in self.log:
            fresh.replay(key, value)
        return fresh

    def take_over(self):
        """The coordinator dies, with what was not durable; its successor continues."""
        self.held.clear()
        self.coordinator = self.successor()
        self.take(self.coordinator.loaded(self.now_us, self.ms))
