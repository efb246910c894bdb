"""A cluster in one process from one seed: the production Raft core over a network and disks that fail on purpose.

::

    planted     bugs put in on purpose             campaign   many seeds, a report
    faults      what goes wrong, and when
    world       events in order of time, clients, heals
    replica     the shell of one core              network    delay, loss, repetition, cuts
    disk        what a disk really holds           image      the content of one log
    judge       the invariants, after every event  knobs      what a seed decides
    recovery    a majority is lost for good        script_words   messages in words
    script      directed scenarios as text, and their transcripts

Everything random comes from the seed, by named streams, so that a seed replays the same events; the trace hash says
so. The disk keeps its own truth: what the core believes to be durable is compared with it and never taken for it. A run
is a number of rounds. In a round anything goes; at its end everything is healed, and the cluster has to find a leader
and to agree within a stated time. `python -m millstream.testing.sim --help` runs it.

**The production code.** The same with what a broker has from the partition down to the disk, in a part of the seeds
with coordinators of groups and of transactions and the controller. Its clients produce, with and without transactions,
read, delete records, commit offsets, make and delete topics. It finds what lies between the core, the log, the
partition and the disk. ::

    brokers_history      a setting and faults from a seed    brokers_planted   bugs put in on purpose
    brokers_clients      producers, readers, a group         brokers_report    for the command line
    brokers_controlled   the controller, its client          brokers_judge     the invariants
    brokers_served       a broker's partitions               brokers_settings  what a seed decides
    brokers_disks        disks that fail and fill up         brokers_transactions   a transactional producer
    brokers_coordinator  coordinators of transactions      brokers_rot        files that go bad
    brokers_snapshots    the controller's snapshots        brokers_upgrades  older releases, and an operator
    brokers              groups, logs, disks, network, time

What is absent: sockets, and wall clocks.
"""
