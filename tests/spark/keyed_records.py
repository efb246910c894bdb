"""Records with keys, for tables with one row for each key and for others, and what each of these tables has to hold."""

import collections
import json
import random

from confluent_kafka import Producer
from spark_support import BAD_EVERY, held

from millstream.pipeline.model import Create, Sink, Source

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
        producer = Producer({"bootstrap.servers": self.topic.bootstrap, "enable.idempotence": True, "log_level": 2})
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
        assert producer.flush(240) == 0
        self.sent += count
        return self

    def source(self, **more):
        return Source(**{"topic": self.topic.name, "format": "json", "schema": SCHEMA, "max_records": 150, **more})


def sinks_of_every_mode(where):
    """A sink of each mode, in Delta, Iceberg, or Delta in a bucket (``s3``)."""

    def target(name):
        return {"delta": {"delta": name}, "iceberg": {"iceberg": f"ns.{name}"}, "s3": {"delta": f"s3://lake/{name}"}}[
            where
        ]

    parted = "SELECT id, who, id % 3 AS part FROM result"
    return {
        "append": Sink(**target("plain"), mode="append"),
        "partitioned": Sink(**target("parted"), sql=parted, create=Create(partition=["part"])),
        "upsert": Sink(**target("by_key"), mode="upsert", key="id"),
        "changelog": Sink(**target("changes"), mode="changelog", key="id"),
    }


def check_every_mode(customers, by_mode, place):
    """Each table holds what the records make of it, and each broken record is one dead letter."""
    for mode, sink in by_mode.items():
        rows, letters = held(sink, place), held(sink, place, "_dead_letters")
        (check_latest if mode in ("upsert", "changelog") else check_appended)(customers, rows, letters, mode)


def check_appended(customers, rows, letters, mode):
    """Each record is one row or one dead letter."""
    assert collections.Counter((row["id"], row["who"]) for row in rows) == +customers.appended
    if mode == "partitioned":
        assert all(row["part"] == (None if row["id"] is None else row["id"] % 3) for row in rows)
    assert len(letters) == len({(row["partition"], row["offset"]) for row in letters}) == customers.broken


def check_latest(customers, rows, letters, mode):
    """The table has what the records make of it, and each broken record is one dead letter."""
    if mode == "changelog":
        assert len(rows) == len({(row["_partition"], row["_offset"]) for row in rows}) == customers.sent - customers.bad
        last = {row["id"]: row for row in sorted(rows, key=lambda row: row["_offset"])}
        rows = [row for row in last.values() if row["_change"] == "upsert"]
    assert sorted((row["id"], row["who"]) for row in rows) == sorted(customers.rows.items())
    assert len(letters) == len({(row["partition"], row["offset"]) for row in letters}) == customers.bad
