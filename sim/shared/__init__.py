"""Shared storage in a simulation: brokers, their logs, a controller and a store that fails, all from one seed.

::

    world      what happens: produce, upload, crash, take-over, move, compaction, removal, readers
    scene      what all parts share
    broker     one life of a broker over the cores and the store
    logs       write-ahead logs on a disk that can be re-attached, and in the store
    judge      what must hold after every step, and at the end
    planted    bugs that the histories find

``python -m sim.shared --help``. The parts under test are ``core.shared``,
``format.shared_object``, ``tiers.shared_objects`` and ``tiers.object_wal``; the broker here is the simulation's own.
"""
