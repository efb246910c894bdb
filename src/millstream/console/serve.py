"""Serves the console alone, over HTTP with waitress.

A request has a thread; ``THREADS`` bounds them. Live views and exports are fewer than that, so pages are served beside
them. Requests beyond wait in waitress's queue, connections beyond ``CONNECTIONS`` in the kernel's.
"""

import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from waitress.server import create_server

from millstream.console.application import create
from millstream.console.message_pages import STREAMS_MAX
from millstream.console.settings import Settings

THREADS: Final = STREAMS_MAX + 6
CONNECTIONS: Final = 200


def serve(settings: Settings, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve on a bound socket until the process is interrupted; ``ready`` is called once requests are taken."""
    logging.getLogger("waitress").setLevel(logging.ERROR)
    application = create(settings)
    server: Any = create_server(
        application,
        sockets=[listener],
        threads=THREADS,
        connection_limit=CONNECTIONS,
        ident=None,
        clear_untrusted_proxy_headers=True,
    )
    ready()
    try:
        server.run()
    finally:
        server.close()
        application.extensions["console"].close()
