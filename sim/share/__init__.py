"""A share partition between unruly members, over a coordinator whose log fails.

::

    world     time, members, the log, leaders that fail over, and the coordinator's log
    model     the share partition once more, one offset at a time, beside the real one
    judge     what must hold of all leaders together
    planted   bugs that a run must find

Each run has one partition and one group. The core of the share partition and that of its coordinator are the real
ones. What is absent: sessions of a broker, sockets, the bytes of records.
"""
