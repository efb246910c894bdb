"""``decide``: a request becomes commands, or the reason why not.

::

    decision = decide(state, request, rules)
    decision.results      one per part of the request: error and message, in Kafka's codes and words
    decision.commands     what to append to the log, as one batch; empty when nothing changes or with validate_only

The caller appends the commands, applies them to its state, and tells the results once the commands are durable.
``decide`` looks at the state and the rules only: it changes nothing, asks no clock, and takes randomness from the
rules.

Bad input is answered part by part; a good part of a request is not held up by a bad one. A request with a thousand
topics costs a thousand small decisions, and no more than ``rules.PARTITIONS_MAX`` partitions.
"""

from collections.abc import Callable
from typing import Any, Final

from millstream.core.controller.acls import decide_create_acls, decide_delete_acls
from millstream.core.controller.balancing import decide_balance_replicas, decide_evacuate_brokers
from millstream.core.controller.brokers import (
    decide_broker_mode,
    decide_fence_broker,
    decide_register_broker,
    decide_unfence_broker,
    decide_unregister_broker,
)
from millstream.core.controller.commands import ClusterCreated, ProducerIdsAllocated
from millstream.core.controller.configs import decide_alter_configs
from millstream.core.controller.cutting import decide_complete_cut, decide_cut_partition
from millstream.core.controller.features import decide_update_features
from millstream.core.controller.losing import decide_declare_lost
from millstream.core.controller.moves import decide_complete_moves, decide_reassign, decide_replication_factor
from millstream.core.controller.quotas import decide_alter_quotas
from millstream.core.controller.requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterQuotas,
    AlterUsers,
    AnyRequest,
    BalanceReplicas,
    CompleteCut,
    CompleteMoves,
    CreateAcls,
    CreateCluster,
    CreatePartitions,
    CreateTopics,
    CutPartition,
    DeclareLost,
    DeleteAcls,
    DeleteTopics,
    EvacuateBrokers,
    FenceBroker,
    NoteLogInStore,
    ReassignPartitions,
    RegisterBroker,
    RestorePartitions,
    Result,
    SetBrokerMode,
    SetReplicationFactor,
    TakeOver,
    UnfenceBroker,
    UnregisterBroker,
    UpdateFeatures,
)
from millstream.core.controller.restoring import decide_note_log_in_store, decide_restore_partitions
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.core.controller.taking_over import decide_take_over
from millstream.core.controller.topics import decide_create_partitions, decide_create_topics, decide_delete_topics
from millstream.core.controller.users import decide_alter_users
from millstream.model.error_code import ErrorCode

__all__ = ["Decision", "Rules", "decide"]

PRODUCER_ID_END: Final = 2**63 - 1
"""Producer ids are int64; the last block ends here, which no cluster will live to see."""


def decide(state: ControllerState, request: AnyRequest, rules: Rules) -> Decision:
    """What ``request`` comes to in ``state``."""
    return _DECIDE[type(request)](state, request, rules)


def _create_cluster(state: ControllerState, request: CreateCluster, rules: Rules) -> Decision:
    if state.exists:
        return Decision((Result(),))
    return Decision((Result(),), (ClusterCreated(request.cluster_id, rules.node),))


def _allocate_producer_ids(state: ControllerState, request: AllocateProducerIds, rules: Rules) -> Decision:
    start = state.next_producer_id
    if request.count < 1 or start + request.count > PRODUCER_ID_END:
        return Decision((Result(ErrorCode.INVALID_REQUEST, f"There is no block of {request.count} producer ids."),))
    return Decision((Result(first_producer_id=start),), (ProducerIdsAllocated(start, request.count, rules.node),))


_DECIDE: Final[dict[type, Callable[[ControllerState, Any, Rules], Decision]]] = {
    CreateTopics: decide_create_topics,
    DeleteTopics: decide_delete_topics,
    CreatePartitions: decide_create_partitions,
    AlterConfigs: decide_alter_configs,
    AllocateProducerIds: _allocate_producer_ids,
    CreateCluster: _create_cluster,
    RegisterBroker: decide_register_broker,
    FenceBroker: decide_fence_broker,
    UnfenceBroker: decide_unfence_broker,
    ReassignPartitions: decide_reassign,
    SetReplicationFactor: decide_replication_factor,
    CompleteMoves: decide_complete_moves,
    CutPartition: decide_cut_partition,
    CompleteCut: decide_complete_cut,
    SetBrokerMode: decide_broker_mode,
    BalanceReplicas: decide_balance_replicas,
    EvacuateBrokers: decide_evacuate_brokers,
    UnregisterBroker: decide_unregister_broker,
    DeclareLost: decide_declare_lost,
    TakeOver: decide_take_over,
    RestorePartitions: decide_restore_partitions,
    NoteLogInStore: decide_note_log_in_store,
    UpdateFeatures: decide_update_features,
    AlterUsers: decide_alter_users,
    CreateAcls: decide_create_acls,
    DeleteAcls: decide_delete_acls,
    AlterQuotas: decide_alter_quotas,
}
