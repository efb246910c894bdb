"""Brokers in one process from one seed: the production code from the partition down to the disk.

A part of the seeds has coordinators of groups and of transactions, and the controller. Its clients produce, with and
without transactions, read, delete records, commit offsets, make and delete topics. It finds what lies between the Raft
core, the log, the partition and the disk. ::

    history      a setting and faults from a seed    planted   bugs put in on purpose
    clients      producers, readers, a group         report    for the command line
    controlled   the controller, its client          judge     the invariants
    served       a broker's partitions               settings  what a seed decides
    disks        disks that fail and fill up         transactions   a transactional producer
    coordinator  coordinators of transactions        rot       files that go bad
    snapshots    the controller's snapshots          upgrades  older releases, and an operator
    world        groups, logs, disks, network, time

A history is a number of rounds, as in `sim.raft`. What is absent: sockets, and wall clocks.
"""
