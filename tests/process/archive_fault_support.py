"""Records that are sent until something has happened, and the check that all of them are read."""

from confluent_kafka import Producer
from tiering import (
    value,
)

from waits import Patience


def produce_until(broker, topic, start, ended):
    """Send records, numbered from ``start``, until something is so; what was acknowledged, by offset."""
    acknowledged = {}
    options = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0}
    producer, number, patience = Producer(options), start, Patience()
    while not ended():
        patience.check("the step is not reached")
        if number < start + 400:
            producer.produce(
                topic,
                value(number),
                b"key %d" % number,
                0,
                timestamp=1_700_000_000_000 + number,
                on_delivery=lambda error, message: error or acknowledged.update({message.offset(): message.value()}),
            )
            number += 1
        producer.poll(0.01)
    producer.purge()
    producer.poll(0)
    return acknowledged


def check_all_read(found, acknowledged):
    """Offsets have no gap, no record is changed, and what was acknowledged is where it was."""
    assert [one[0] for one in found] == list(range(len(found)))
    for offset, key, data, timestamp in found:
        number = int(key.split()[1])
        assert (data, timestamp) == (value(number), 1_700_000_000_000 + number), offset
    for offset, data in acknowledged.items():
        assert offset < len(found), f"the acknowledged record {offset} is gone"
        assert found[offset][2] == data, f"the acknowledged record {offset} is another one"
