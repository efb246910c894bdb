"""The interface of Mofka for Python, over event topics of this store: a script changes its import line only.

``millstream.diaspora.api`` has the names of ``diaspora_stream.api``, ``millstream.diaspora.mofka`` those of the older
``mochi.mofka.client``. Both accept what published scripts write: positional and keyword arguments, ``wait()`` with and
without a time, ``completed`` read or called, old names of arguments. Options of Mofka's own machinery (engines, pools
of threads, dependencies) have no effect here, and warn of that (``IgnoredOption``). ``create_topic`` takes the
configuration of partitions, which the broker checks.

Different on purpose, because there it loses data or ends the process: views stack relative to each other, a wait that
is over loses no event, acknowledgements are durable and never go back, typed buffers keep all of their bytes, an
exception of a selector belongs to its event, exit sends what was pushed.
"""

from millstream.diaspora import api, mofka
from millstream.diaspora.ignored import IgnoredOption

__all__ = ["IgnoredOption", "api", "mofka"]
