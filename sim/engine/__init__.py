"""What all simulations stand on.

::

    disk            a disk in memory that knows what is durable, fails and crashes
    local_storage   a broker's storage over such a disk: reactor, writer and worker are stepped by hand
    lanes           helpers that rest in the middle of what they do
    objects         an object store in memory that fails
    requests        what clients ask a broker for, as its handlers see it
    planting        functions that are replaced while a bug is planted
    histories       histories from seeds: findings, sums, the hunt for a planted bug
    timeline        what is due when, and the random numbers of each purpose
    command         the command line of all scenarios
"""
