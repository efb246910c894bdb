"""Simulations: the production code in one process, from one seed. They belong to the checkout, not to the wheel.

::

    engine         the clock, the command line, the simulated disk, a broker's storage stepped by hand, an object store
                   that fails, planted bugs
    raft           the Raft core alone: elections, replication, members, over a network and disks that fail
    brokers        brokers from the partition down to the disk, with groups, transactions and the controller
    storage        a broker's storage, with a power failure before every operation of its disk
    archive        brokers whose topic is tiered
    shared         brokers whose topics are shared
    transactions   the cores of transactions between unruly clients
    share          a share partition and the coordinator of its state, between unruly members
    take_over      brokers that die while others take over what the object store has of them
    pairs          every kind of topic with every ordered pair of operations

Everything random comes from the seed, by named streams, so that a seed replays the same events. Production code never
imports this package. What is absent: sockets, and wall clocks.
"""
