"""Settings of brokers whose write-ahead log lies in the object store."""

NEVER = 3_600_000


def settings(bucket, **more):
    return {
        "objects.url": f"file://{bucket}",
        "shared.wal": "object",
        "shared.wal.interval.ms": 20,
        "shared.upload.interval.ms": NEVER,
        "checkpoint.ms": 500,
        **more,
    }
