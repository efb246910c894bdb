"""Records with keys, for tables with one row for each key and for others."""

import collections
import json
import random

from confluent_kafka import Producer
from spark_support import BAD_EVERY

from millstream.pipeline.model import Source

SCHEMA = "id bigint, who string"


class Customers:
    """A topic of keyed records, some of them tombstones, some broken.

    ``rows`` is what a table by key has to hold, and ``bad`` how many dead letters it has. ``appended`` counts the rows
    of a table that is appended to, and ``broken`` are its dead letters.
    """

    def __init__(self, topic, seed=7):
        self.topic = topic(2)
        self.random = random.Random(seed)
        self.rows, self.sent, self.bad = {}, 0, 0
        self.appended, self.broken = collections.Counter(), 0

    def send(self, count, *, keys=40):
        producer = Producer({"bootstrap.servers": self.topic.bootstrap, "linger.ms": 5, "log_level": 2})
        for number in range(self.sent, self.sent + count):
            key, kind = self.random.randrange(keys), self.random.random()
            value = json.dumps({"id": key, "who": f"n{number}"})
            if number % BAD_EVERY == 0:
                self.bad += 1
                producer.produce(self.topic.name, "{broken" if kind < 0.5 else '{"who": "nobody"}', str(key))
                self.broken += kind < 0.5
                self.appended[None, "nobody"] += kind >= 0.5
            elif number % BAD_EVERY == 1:
                self.bad += 1
                producer.produce(self.topic.name, None, "no number")
                self.appended[None, None] += 1
            else:
                value = None if kind < 0.2 else value
                producer.produce(self.topic.name, value, str(key))
                self.rows[key] = f"n{number}"
                self.appended[(None, None) if value is None else (key, f"n{number}")] += 1
                if value is None:
                    del self.rows[key]
            producer.poll(0)
        assert producer.flush(60) == 0
        self.sent += count
        return self

    def source(self, **more):
        return Source(**{"topic": self.topic.name, "format": "json", "schema": SCHEMA, "max_records": 150, **more})
