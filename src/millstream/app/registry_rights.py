"""The rights that a caller of the schema registry needs: subjects are parts of topics.

=====================================================  ==========================  =======================
Request                                                Subject ``T-key, T-value``  another subject, or none
=====================================================  ==========================  =======================
read a subject, look a schema up, test compatibility   DESCRIBE on topic T         READ on ``_schemas``
register                                               WRITE on topic T            ALTER on ``_schemas``
delete a subject or version                            DELETE on topic T           ALTER on ``_schemas``
read configuration or mode                             READ on ``_schemas``        READ on ``_schemas``
change configuration or mode                           ALTER on ``_schemas``       ALTER on ``_schemas``
list subjects, schemas, contexts; a schema by GUID     –                           READ on ``_schemas``
a schema by id                                         DESCRIBE on the topic of one of its subjects
=====================================================  ==========================  =======================

A subject in another context than the default one is "another subject". The types of schemas are no secret. A path
that the registry does not know needs READ on ``_schemas``, as a list does. Parts of a path are decoded as the registry
decodes them, so that both mean the same subject.
"""

import re
import urllib.parse
from collections.abc import Sequence
from typing import Final

from millstream.admin.routing import Need, Request
from millstream.model.access import Operation, ResourceType

SCHEMAS: Final = "_schemas"
_ENDS: Final = ("-value", "-key")
_LOOK_UP: Final = re.compile(r"/subjects/[^/]+/?")
_SCHEMA_BY_ID: Final = re.compile(r"/schemas/ids/([0-9]{1,10})(?:/.*)?")
_FREE: Final = re.compile(r"/(?:schemas/types|master_available)/?")


def registry_needs(request: Request) -> Sequence[Need]:
    """The rights for one request. Empty if it needs none, and for a schema by its id: there its subjects decide."""
    method, path = request.method, request.target.partition("?")[0]
    if schema_id_of(path) or (method == "GET" and _FREE.fullmatch(path)):
        return ()
    parts = [urllib.parse.unquote_plus(part) for part in path.split("/") if part]
    first = parts[0] if parts else ""
    if first == "compatibility":
        return (subject_need(parts[2] if len(parts) > 2 else "", Operation.DESCRIBE),)
    if first == "subjects" and len(parts) > 1:
        if method == "GET" or (method == "POST" and _LOOK_UP.fullmatch(path)):
            return (subject_need(parts[1], Operation.DESCRIBE),)
        return (subject_need(parts[1], Operation.DELETE if method == "DELETE" else Operation.WRITE),)
    return (_whole(Operation.READ if method == "GET" else Operation.ALTER),)


def schema_id_of(path: str) -> str:
    """The id in the path of a request for a schema by its id; empty for another path."""
    found = _SCHEMA_BY_ID.fullmatch(path)
    return found[1] if found else ""


def subject_need(subject: str, operation: Operation) -> Need:
    """The right to do this to a subject."""
    for end in _ENDS:
        if subject.endswith(end) and len(subject) > len(end) and not subject.startswith(":"):
            return Need(operation, ResourceType.TOPIC, subject.removesuffix(end))
    return _whole(Operation.READ if operation is Operation.DESCRIBE else Operation.ALTER)


def _whole(operation: Operation) -> Need:
    return Need(operation, ResourceType.TOPIC, SCHEMAS)
