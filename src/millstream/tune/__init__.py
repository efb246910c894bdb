"""What of this machine slows a broker down, and how it is set: ``millstream tune``.

    facts (files under a root) ──► checks (one file each, pure) ──► findings ──► table, script, writes, undo

``facts`` reads ``/proc``, ``/sys`` and ``/etc`` below a root, so that a recorded machine is a directory. A check looks
at facts and returns one of the outcomes of ``finding``; it writes nothing. ``applying`` makes the writes and takes them
back. ``at_start`` has the lines that ``millstream start`` logs.

**Bad input.** A file that is missing, unreadable or not understood makes a check say *not possible here* or *not
needed*. A check never fails for hardware that is not there. **Crash.** The old values are on the disk before the first
write, so ``--undo`` works after a crash between two writes. **Overload.** Nothing here runs while a broker serves,
except that a start reads some hundred small files.
"""
