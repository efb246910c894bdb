"""Helper processes of a shard: how the reactor asks them, and how they serve.

::

    reactor:  link.ask ──► lanes.send ──► channel ═══socket═══► channel ──► serving   :helper
              link.reply ◄───────────────── channel ◄═══════════ channel ◄── reply

A helper (worker, cleaner, archive process) has one socket per lane. A command that wants a reply carries an id, and its
reply carries the same one (``link``). ``fills`` is for commands whose reply fills memory of the shard's arena: it finds
that memory, and waits for it. The messages themselves are the caller's: ``storage.messages``, ``tiers.messages``.

Promises. A reply reaches the caller of its command, once, in a later call. The reactor never blocks on a socket. When
the helper ends, the caller learns it from the process descriptor; messages that were sent before are still read. Under
overload commands wait in the socket, and fills wait for memory for a bounded time, then fail retriably.

What is absent: what a command means, forking (``shard.process``).
"""
