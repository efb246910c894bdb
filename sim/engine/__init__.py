"""What all simulations stand on.

::

    disk            a disk in memory that knows what is durable, fails and crashes
    local_storage   a broker's storage over such a disk: reactor, writer and worker are stepped by hand
    lanes           helpers that rest in the middle of what they do
    objects         an object store in memory that fails
    planting        functions that are replaced while a bug is planted
    histories       findings, the hunt for planted bugs and a command, for simulations that play a history in a function
"""
