"""Serves the console alone, over HTTP with waitress: for one cluster, or for several (``console.clusters``).

A request has a thread; there are ``OPEN_MAX`` for each cluster. Live views and exports are fewer than that, so pages
are served beside them. Requests beyond wait in waitress's queue, connections beyond ``CONNECTIONS`` in the kernel's.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from waitress.server import create_server

from millstream.console.application import create
from millstream.console.clusters import OPEN_MAX, Clusters
from millstream.console.settings import Settings

CONNECTIONS: Final = 200


def serve(clusters: Sequence[Settings], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve clusters on a bound socket until the process is interrupted; ``ready`` is called once requests are taken.
    One without a name is served alone, at ``/``.
    """
    logging.getLogger("waitress").setLevel(logging.ERROR)
    application = Clusters(clusters) if clusters[0].name else create(clusters[0])
    close = application.close if isinstance(application, Clusters) else application.extensions["console"].close
    server: Any = create_server(
        application,
        sockets=[listener],
        threads=OPEN_MAX * len(clusters),
        connection_limit=CONNECTIONS * len(clusters),
        ident=None,
        clear_untrusted_proxy_headers=True,
    )
    ready()
    try:
        server.run()
    finally:
        server.close()
        close()
