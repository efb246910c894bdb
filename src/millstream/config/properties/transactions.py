"""Settings of transactions."""

from __future__ import annotations

from millstream.config.forms import Integer, Short
from millstream.config.property import Property

_MIB = 2**20


class TransactionProperties:
    """Transactional ids, and the topic that stores them."""

    transaction_max_timeout_ms = Property(
        "transaction.max.timeout.ms",
        Integer(1, 2**31 - 1, unit="ms"),
        900_000,
        doc="Maximum transaction timeout that a producer may request. A transaction that is open for longer than its "
        "timeout is aborted.",
    )
    transaction_version = Property(
        "transaction.version",
        Integer(0, 2),
        2,
        doc="Level of the feature `transaction.version` that clients see, the same on every broker. Below 2 they "
        "do not get a new epoch for each transaction (KIP-890), and add partitions to it themselves. For clients that "
        "are faulty with level 2; Kafka sets it when a cluster is formatted.",
    )
    transactional_id_expiration_ms = Property(
        "transactional.id.expiration.ms",
        Integer(1, unit="ms"),
        604_800_000,
        doc="Time without a transaction after which a transactional id is forgotten.",
    )
    transaction_remove_expired_interval_ms = Property(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Integer(1, unit="ms"),
        3_600_000,
        doc="Interval between two searches for transactional ids that have expired.",
    )
    transaction_abort_timed_out_interval_ms = Property(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Integer(1, unit="ms"),
        1_000,
        doc="Interval between two searches for transactions that are open for longer than their timeout. A transaction "
        "is aborted at most so long after its timeout. The default of Apache Kafka is 10,000.",
    )
    transaction_state_log_num_partitions = Property(
        "transaction.state.log.num.partitions",
        Integer(1, 1_000),
        50,
        doc="Number of partitions of __transaction_state, fixed at its creation. A transactional id decides its "
        "partition.",
    )
    transaction_state_log_replication_factor = Property(
        "transaction.state.log.replication.factor",
        Short(1),
        3,
        doc="Number of replicas of __transaction_state. A cluster with fewer brokers gives it an odd number of them, "
        "and more when brokers join; Kafka would not create the topic.",
    )
    transaction_state_log_min_isr = Property(
        "transaction.state.log.min.isr",
        Integer(1),
        2,
        doc="min.insync.replicas of __transaction_state, set at its creation. At most its replication factor counts.",
    )
    transaction_state_log_segment_bytes = Property(
        "transaction.state.log.segment.bytes",
        Integer(_MIB, unit="bytes"),
        100 * _MIB,
        doc="Segment size of __transaction_state.",
    )
