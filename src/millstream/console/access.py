"""Connections to a cluster, shared by the threads that answer requests.

A ``millstream.client.Cluster`` belongs to one thread at a time. ``Access.cluster`` lends an idle one and takes it back;
after an error it is closed instead, since a response may still be due on it. At most ``IDLE_MAX`` are kept.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from millstream.client.cluster import Cluster
from millstream.client.connection import Dial
from millstream.client.security import PLAIN, Security
from millstream.console.facts import Snapshot, take_snapshot
from millstream.errors import MillstreamError

REQUEST_TIMEOUT_S: Final = 8.0
"""Limit of one call to brokers, retries included: a page that fails should fail while its reader still waits."""
IDLE_MAX: Final = 4
SNAPSHOT_AGE_S: Final = 2.0
"""Metadata of all topics are asked for at most this often; with 10,000 topics they are a response of 1 MB."""


class Access:
    """What one identity needs to ask one cluster. Safe for threads. Close it."""

    def __init__(
        self,
        bootstrap: str,
        security: Security = PLAIN,
        dial: Dial | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """With ``dial`` all connections come from there (``client.connection``)."""
        self.bootstrap = bootstrap
        self.security = security
        self._dial = dial
        self._closed = False
        self._timeout_s = timeout_s
        self._idle: list[Cluster] = []
        self._lock = threading.Lock()
        self._snapshot_lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._snapshot_at = 0.0
        self._failed: MillstreamError | None = None
        """Why the last snapshot could not be taken, and when it failed."""
        self._failed_at = 0.0

    @contextmanager
    def cluster(self) -> Generator[Cluster]:
        """A cluster for one request."""
        with self._lock:
            lent = self._idle.pop() if self._idle else None
        if lent is None:
            lent = self.connect(self._timeout_s)
        try:
            yield lent
        except BaseException:
            lent.close()
            raise
        with self._lock:
            if len(self._idle) < IDLE_MAX and not self._closed:
                self._idle.append(lent)
                return
        lent.close()

    def connect(self, timeout_s: float) -> Cluster:
        """A cluster of the caller's own, for as long as it likes."""
        return Cluster(
            self.bootstrap, client_id="millstream-console", timeout_s=timeout_s, security=self.security, dial=self._dial
        )

    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        """Brokers and topics, at most ``SNAPSHOT_AGE_S`` old. One thread asks, the others wait for what it gets, even
        an error: all pages of a cluster that does not answer say so at the same time.
        """
        came = time.monotonic()
        with self._snapshot_lock:
            now = time.monotonic()
            if self._failed is not None and self._failed_at > came:
                raise type(self._failed)(self._failed.message, self._failed.code)
            if fresh or self._snapshot is None or now - self._snapshot_at > SNAPSHOT_AGE_S:
                try:
                    with self.cluster() as cluster:
                        self._snapshot = take_snapshot(cluster)
                except MillstreamError as error:
                    self._failed, self._failed_at = error.with_traceback(None), time.monotonic()
                    raise
                self._failed = None
                self._snapshot_at = time.monotonic()
            return self._snapshot

    def snapshot_of(self, *topics: str) -> Snapshot:
        """Brokers, and these topics now, if they exist: what needs few topics, or none, does not ask for all."""
        with self.cluster() as cluster:
            return take_snapshot(cluster, topics)

    def close(self) -> None:
        """Close what is idle now, and what comes back later."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for cluster in idle:
            cluster.close()
