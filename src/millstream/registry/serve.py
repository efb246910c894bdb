"""The registry over its topic: one request after the other.

::

    request ──► read what is new in _schemas ──► decide ──► write ──► read it back ──► response
                                                   ▲                      │ another registry was first
                                                   └──── take it back ◄───┘

It is a client of the broker like any other and holds nothing that has to survive. What it promises: an answer that says
that something was written comes after the write was acknowledged by every in-sync replica and read back; a request that
failed says whether it may have been written (error code 50002) or was not. Registries of several brokers may take
changes at the same time: no version and no schema id is given twice (``overruled``).

A record of ``_schemas`` that makes no sense is skipped with a line in the log; the others are served.
"""

import traceback
from collections.abc import Callable
from typing import Final

from millstream.client.compacted_topic import CompactedTopic, TopicReset
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.registry.model import Refused
from millstream.registry.overruled import overruled
from millstream.registry.records import BadRecord, StoredRecord, decode, encode
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
            if not decision.events or self._holds([encode(event) for event in decision.events]):
                return respond(decision.answer)
        raise Unavailable("other registries register schemas at the same time, again and again; nothing was written")

    def _holds(self, records: list[StoredRecord]) -> bool:
        """Write the records of a decision; whether they hold. Those that do not are taken back."""
        read: list[StoredRecord] = []
        self._write(records)
        self._catch_up(read)
        before = read[: read.index(records[0])] if records[0] in read else []
        taken_back = overruled(before, records)
        if taken_back:
            self._write(taken_back)
        return not taken_back

    def _write(self, records: list[StoredRecord]) -> None:
        self._log.write([(record.key, record.value) for record in records])

    def _catch_up(self, read: list[StoredRecord] | None = None) -> None:
        """Take in what is new in the topic; ``read`` gets these records, too."""

        def take(record: Record) -> None:
            if read is not None:
                read.append(StoredRecord(record.key or b"", record.value))
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
            self._service.state.apply(event)
