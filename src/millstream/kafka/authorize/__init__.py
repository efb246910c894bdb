"""The rights of each API, checked between the dispatcher and the handler.

::

    request ──guard──► what may be done ──handler──► response ──merge──► with what was refused
               └─ nothing may be done ─► response

A guard asks for rights before anything is looked up, so that an error does not tell whether a resource exists: refused
is refused, as in Kafka. It takes refused elements out of the request, and adds them to the response with their error;
from lists of everything it takes what the client may not describe. A handler never sees what is refused.

The rights stand with the guards (``rights.guard``), and the reference and the tests are made from them. A broker
without access control does not come here (``kafka.dispatch``).
"""
