"""The helper's side of its lanes: one thread per lane executes commands in order.

A lane ends with a ``Stop`` command. An exception that escapes a command ends the process with ``EXIT_SOFTWARE``,
because its state is unknown; its shard stops then. When the shard has ended, so does the process.
"""

from __future__ import annotations

import os
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millstream.shard.process import EXIT_SOFTWARE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.helper.channel import HelperChannel

C = TypeVar("C")


def serve(
    channels: Sequence[HelperChannel],
    decode: Callable[[bytes], C],
    stop: type[C],
    carry_out: Callable[[C], bytes | None],
    *,
    gather_first: bool = False,
) -> None:
    """Execute the commands of all lanes until each got a command of type ``stop``. The first lane is this thread's.

    ``carry_out`` returns the encoded reply, if there is one. With ``gather_first`` the first lane sends the replies to
    commands that arrived together at once: each message wakes the reactor.
    """
    lane = partial(_run_lane, decode=decode, stop=stop, carry_out=carry_out)
    threads = [threading.Thread(target=lane, args=(channel,), daemon=True) for channel in channels[1:]]
    for thread in threads:
        thread.start()
    lane(channels[0], gather=gather_first)
    for thread in threads:
        thread.join()


def _run_lane(
    channel: HelperChannel,
    decode: Callable[[bytes], C],
    stop: type[C],
    carry_out: Callable[[C], bytes | None],
    *,
    gather: bool = False,
) -> None:
    try:
        while messages := channel.receive():
            replies: list[bytes] = []
            for message in messages:
                command = decode(message)
                if isinstance(command, stop):
                    channel.send(replies)
                    return
                reply = carry_out(command)
                if reply is not None:
                    replies.append(reply)
                    if not gather:
                        channel.send(replies)
                        replies.clear()
            channel.send(replies)
    except BaseException:  # noqa: BLE001  # the state of the process is unknown, so the process and its shard end
        traceback.print_exc()
        os._exit(EXIT_SOFTWARE)
    os._exit(0)  # the shard has ended
