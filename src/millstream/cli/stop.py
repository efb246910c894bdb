"""``millstream stop``: stop the broker of a data directory on this machine, and wait for its end.

The lock file of the directory has the broker's process id. The broker gets SIGTERM: it answers requests in flight and
syncs everything into its segments. A broker that runs on another machine, or for another user, is not reached.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import cast

import click

from millstream.cli.failure import CommandFailed
from millstream.cli.lock import lock_holder
from millstream.cli.output import remark
from millstream.config.node_properties import NODE_PROPERTIES

_LOOK_S = 0.05


@click.command("stop")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=cast("str", NODE_PROPERTIES["data.dir"].default),
    metavar="DIR",
    help="The broker's data directory.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=3600),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait for its end.",
)
def stop(data: Path, timeout: float) -> None:
    """Stop the broker that runs on a data directory of this machine, and wait for its end."""
    if not data.is_dir():
        raise CommandFailed(f"there is no directory {data}; name the directory given to 'millstream start --data'")
    holder = lock_holder(data)
    if holder is None:
        remark(f"no broker runs on {data}")
        return
    if holder <= 0:
        raise CommandFailed(f"a broker runs on {data}, but {data / 'lock'} does not say which process it is")
    try:
        os.kill(holder, signal.SIGTERM)
    except ProcessLookupError:
        raise CommandFailed(
            f"a broker runs on {data}, but its process {holder} is not on this machine or not in this container"
        ) from None
    except PermissionError:
        raise CommandFailed(
            f"the broker on {data} (process {holder}) belongs to another user; stop it as that user or as root"
        ) from None
    began = time.monotonic()
    while lock_holder(data) == holder:
        if time.monotonic() - began > timeout:
            raise CommandFailed(
                f"the broker on {data} (process {holder}) did not end within {timeout:g} s and may still do so; its "
                "log says what it waits for"
            )
        time.sleep(_LOOK_S)
    remark(f"stopped the broker on {data} (process {holder})")
