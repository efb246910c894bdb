"""Share partitions on the shards that lead their logs, and the sessions of their members (KIP-932).

::

    handler ─► sessions: who fetches what, in which epoch        (the connection's shard)
            └► home: one hop to the shard of the partition ─► served: a share partition over its log
                                                                 └► coordinator.share_states: what is stored

``core.share`` decides. What is absent: membership of groups, requests and responses.
"""
