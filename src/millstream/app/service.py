"""Reports the broker's state to a service manager: systemd's notification protocol (``Type=notify``, sd_notify(3)).

A state is one datagram of ``NAME=value`` lines to the socket in ``NOTIFY_SOCKET``; a name that begins with ``@`` is an
abstract one. Without the variable nothing is sent. A manager that does not listen is no error.
"""

import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


def tell_manager(state: str) -> None:
    """Send a state such as ``READY`` to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return
