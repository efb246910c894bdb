"""Simulated brokers whose topic is tiered: production archiver, cache and Raft, over a store that fails.

::

    store      the bucket: errors, lost answers, late writes, flipped bits; what it may hold (F1, F4, F5)
    broker     a simulated broker with an archiver, an archive process in steps, and a warm cache that fails
    jobs       jobs that merge segments, with stale manifests, damaged objects, repeated requests
    judge      what the archives of all replicas must agree on (F2, F3), and what the store alone must give back (F8)
    history    a history from a seed: clients and faults of `sim.brokers`, and those of the store
    planted    bugs put in on purpose

==  ==================================================================================================================
F1  An entry that is committed names an object that is there, whole and right.
F2  A local copy goes only when its object is committed.
F3  All replicas have the same archive in one version of the manifest; archive and files cover the log without a hole.
F4  No object is removed that the log still needs, in any replica's view, or that a reader has started to read.
F5  An object that is committed is never replaced by other bytes, and no two of one version of the manifest overlap.
F8  The store alone gives back everything that is archived: of shared topics whenever an object goes or is replaced.
==  ==================================================================================================================

G7 says that a replacement is answered in the same way however often it is asked for. A client that reads what was never
committed is `sim.brokers`' C4. F6 and F7 are about logs in the store: `sim.take_over`. G6 says that what waits is
archived in time after a heal, and that what no log needs is deleted. ``python -m sim archive`` runs it, with
``--planted`` it hunts the planted bugs. `sim.shared` has shared topics.
"""
