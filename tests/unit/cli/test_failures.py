"""The sentence for an error that a broker told."""

import pytest
from confluent_kafka import KafkaError

from millstream.cli.failure import explain


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KafkaError(16, "ConsumerGroupDescribe: "), "group 'g': ConsumerGroupDescribe: Not coordinator"),
        (KafkaError(16), "group 'g': Not coordinator"),
        (KafkaError(37, "Too many partitions."), "group 'g': Too many partitions"),
        (KafkaError(69), "there is no group 'g'; 'millstream group list' shows those that exist"),
    ],
)
def test_an_error_is_told_in_words_also_when_the_broker_had_none(error, sentence):
    assert str(explain(error, "group 'g'", "localhost:9092")) == sentence
