"""Histories of brokers that die, are paused and come back, while others take over what the object store has of them.

::

    controller: TakeOvers ─► decide ─► commands ──late──► brokers: SharedWal, LogInStore ─ LogWorker ─► faulty store
                    └─ EndLives, from the active controller                 └─ ShardStorage on a disk that crashes

It runs the production's part of a take-over (`cluster.take_overs`, `core.controller.restoring`, `tiers.shared_wal`,
`tiers.wal_lives`, `tiers.restoring`, `app.log_in_store`) over one shard for each broker. The controller's log is a list
here, which each broker applies in its own time. Each partition has one replica, and its objects have nothing of others.
Groups of several voters, and the production's uploads and joins, are simulated elsewhere (`sim.brokers`,
`sim.archive`).

Judged after each step: no offset is acknowledged twice, with different records. At each heal: every partition is
served within a stated time, and has everything that was acknowledged.
"""
