"""A cluster in one process from one seed: the production Raft core over a network and disks that fail on purpose.

::

    planted     bugs put in on purpose             campaign   many seeds, a report
    faults      what goes wrong, and when
    world       events in order of time, clients, heals
    replica     the shell of one core              network    delay, loss, repetition, cuts
    disk        what a disk really holds           image      the content of one log
    judge       the invariants, after every event  knobs      what a seed decides
    recovery    a majority is lost forever         script_words   messages in words
    script      directed scenarios as text, and their transcripts

Everything random comes from the seed, by named streams, so that a seed replays the same events; the trace hash says
so. The disk keeps its own truth: what the core believes to be durable is compared with it and never taken for it. A run
is a number of rounds. In a round anything goes; at its end everything is healed, and the cluster has to find a leader
and to agree within a stated time. `python -m sim --help` runs it.

What is absent: the log, the partition and the disk of production (`sim.brokers`), sockets, and wall clocks.
"""
