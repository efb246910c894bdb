"""A broker's storage in memory, on a disk with a truth of its own: every crash point of random histories, judged.

::

    history   what clients, time and faults do, from one seed          models   what was given and promised
    life      the production code, recovery to crash                   judge    the invariants
    faults    disks that fail, are full, rot                           points   a crash before every operation

`python -m sim storage` plays fresh histories for as long as one likes and prints the seed of a failure. What it found
is in ``docs/notes/2026-11-23-faults-found.md``.
"""
