"""The registry over its topic: one request after the other.

::

    request ──► read what is new in _schemas ──► decide ──► write ──► read it back ──► response
                                           ▲                              │
                                           └── another registry was first ┘

It is a client of the broker like any other and holds nothing that has to survive. What it promises: an answer that says
that something was written comes after the write was acknowledged by every in-sync replica and read back; a request that
failed says whether it may have been written (error code 50002) or was not. Registries of several brokers may take
changes at the same time. A registration says in a header that it counts only if its version and its id are free where
it stands in the topic; so all registries read the same, and one that came too late decides again.

A record of ``_schemas`` that makes no sense is skipped with a line in the log; the others are served.
"""

import traceback
from collections.abc import Callable
from typing import Final

from millstream.client.compacted_topic import CompactedTopic, TopicReset
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.registry.model import Refused, Registered
from millstream.registry.records import IF_FREE, BadRecord, StoredRecord, decode, encode, registrations
from millstream.registry.rest import HttpRequest, HttpResponse, handle, refusal
from millstream.registry.service import Service
from millstream.registry.state import State
from millstream.wire.records import Record

TOPIC: Final = "_schemas"
_ATTEMPTS: Final = 20
"""Decisions of one request. Each one after the first means that another registry was faster."""


class Registry:
    """The registry over a topic. Not shared between threads."""

    def __init__(self, log: CompactedTopic, warn: Callable[[str], None]) -> None:
        self._log = log
        self._warn = warn
        self._service = Service(State())

    def respond(self, request: HttpRequest) -> HttpResponse:
        """The response to a request; never raises."""
        try:
            return self._respond(request)
        except Refused as error:
            return refusal(error, request)
        except OutcomeUnknown as error:
            why = f"It is not known if the change was written: {error.message}. Ask again before repeating it."
            return refusal(Refused(500, 50002, why), request)
        except Rejected as error:
            if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
                return refusal(Refused(422, 42209, f"Schema is too large: {error.message}"), request)
            return refusal(Refused(500, 50001, f"Error in the backend data store: {error.message}"), request)
        except (MillstreamError, OSError) as error:
            return refusal(Refused(500, 50001, f"Error in the backend data store: {error}"), request)
        except Exception as error:  # noqa: BLE001 (a request does not end the process)
            self._warn(f"{request.method} {request.target[:200]} failed: {traceback.format_exc()}")
            return refusal(Refused(500, 50001, f"Internal error: {error!r}"), request)

    def _respond(self, request: HttpRequest) -> HttpResponse:
        for _ in range(_ATTEMPTS):
            self._catch_up()
            decision, respond = handle(self._service, request)
            new = [each for each in registrations(decision.events) if self._service.state.is_free(each)]
            self._write([encode(event) for event in decision.events], new)
            if all(map(self._service.state.holds, new)):
                return respond(decision.answer)
        raise Unavailable("other registries register schemas at the same time, again and again; nothing was written")

    def _write(self, records: list[StoredRecord], new: list[Registered]) -> None:
        """Write the records of a decision, which registers ``new``, and read them back.

        The topic's last record of a version that was taken is made the one that holds, because compaction keeps it.
        """
        last: dict[bytes, bytes | None] = {}
        while records:
            self._log.write([(record.key, record.value) for record in records], IF_FREE if new else ())
            self._catch_up(last)
            held = [encode(self._service.state.event_of(each.subject, each.version)) for each in new]
            records = [record for record in held if last.get(record.key, record.value) != record.value]

    def _catch_up(self, last: dict[bytes, bytes | None] | None = None) -> None:
        """Take in what is new in the topic; ``last`` gets the value of each key in it."""

        def take(record: Record) -> None:
            if last is not None:
                last[record.key or b""] = record.value
            self._take(record)

        for _ in range(3):
            try:
                self._log.read_new(take)
                return
            except TopicReset:
                self._warn(f"topic {TOPIC} was created again; what is registered is read again")
                self._service = Service(State())
        raise OutcomeUnknown(f"topic {TOPIC} is created again and again")

    def _take(self, record: Record) -> None:
        try:
            event = decode(record.key, record.value)
        except BadRecord as error:
            self._warn(f"the record at offset {record.offset} of {TOPIC} is skipped: {error}")
            return
        if event is not None:
            self._service.state.apply(event, only_if_free=IF_FREE[0] in record.headers)
