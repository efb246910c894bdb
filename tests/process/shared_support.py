"""What tests of shared topics share: their settings, their objects, and what is uploaded."""

from confluent_kafka.admin import NewTopic
from tiering import ask, tier

SHARED = {"storage.mode": "shared", "retention.ms": "-1", "file.delete.delay.ms": "100"}


def settings(bucket, **more):
    return {
        "objects.url": f"file://{bucket}",
        "shared.upload.interval.ms": 200,
        "log.retention.check.interval.ms": 200,
        "checkpoint.ms": 500,
        **more,
    }


def create(broker, name, partitions=1, **config):
    own = {**SHARED, **{key.replace("_", "."): str(one) for key, one in config.items()}}
    ask(broker, "create_topics", [NewTopic(name, partitions, 1, config=own)], name)


def objects(bucket):
    return [path for path in (bucket / "shared").rglob("*") if path.is_file()] if bucket.exists() else []


def uploaded(broker, topic, partitions=1):
    """Whether everything is in objects, and the disk has none of it."""
    found = {one["partition"]: one for one in tier(broker, "status", topic)["partitions"]}
    return len(found) == partitions and all(
        one["archived_end_offset"] == one["high_watermark"] == one["local_start_offset"] for one in found.values()
    )
