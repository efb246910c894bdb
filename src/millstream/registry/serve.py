"""The registry over its topic: one request after the other.

::

    request ──► read what is new in _schemas ──► decide ──► write ──► read it back ──► response

It is a client of the broker like any other and holds nothing that has to survive. What it promises: an answer that says
that something was written comes after the write was acknowledged by every in-sync replica and read back; a request that
failed says whether it may have been written (error code 50002) or was not.

A record of ``_schemas`` that makes no sense is skipped with a line in the log; the others are served.
"""

import traceback
from collections.abc import Callable
from typing import Final

from millstream.client.compacted_topic import CompactedTopic, TopicReset
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected
from millstream.model.error_code import ErrorCode
from millstream.registry.model import Refused
from millstream.registry.records import BadRecord, decode, encode
from millstream.registry.rest import HttpRequest, HttpResponse, handle, refusal
from millstream.registry.service import Service
from millstream.registry.state import State
from millstream.wire.records import Record

TOPIC: Final = "_schemas"


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
        self._catch_up()
        decision, respond = handle(self._service, request)
        if decision.events:
            self._log.write([(stored.key, stored.value) for stored in map(encode, decision.events)])
            self._catch_up()
        return respond(decision.answer)

    def _catch_up(self) -> None:
        for _ in range(3):
            try:
                self._log.read_new(self._take)
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
