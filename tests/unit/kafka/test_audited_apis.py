"""Every API whose rights are those of changes is in the audit, found from the table of rights."""

from millstream.kafka.audit import CHANGES
from millstream.kafka.authorize.table import RIGHTS
from millstream.kafka.served import SERVED
from millstream.model.access import Operation

OF_CHANGES = {
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.ALTER_CONFIGS,
    Operation.CLUSTER_ACTION,
}
ELSEWHERE = {
    3: "a topic that it has created is recorded by its handler",
    24: "brokers verify transactions with it, and a producer's transactions are no changes",
    **dict.fromkeys(range(83, 88), "brokers ask each other"),
}


def test_an_api_of_changes_is_audited_or_has_a_reason():
    found = {key for key, rights in RIGHTS.items() if OF_CHANGES & {one.operation for one in rights}}
    missing = {key: SERVED[key].name for key in found - set(CHANGES) - set(ELSEWHERE)}
    assert not missing
    assert not set(ELSEWHERE) & set(CHANGES)
    assert set(CHANGES) <= set(SERVED)
    assert {91, 92} <= set(CHANGES), "offsets of share groups, which only administrators move"
