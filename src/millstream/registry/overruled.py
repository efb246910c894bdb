"""Two registries over one topic: which records of another one overrule a registration, and what takes it back.

Registries of several brokers decide alone, each on what it has read. The topic's order decides between them: what comes
first holds. A registration that was decided without an earlier record of the topic may have given away the same version
of a subject, or the same schema id, once more. It is then taken back before it is answered, and decided again.
"""

from collections.abc import Sequence

from millstream.registry.model import Registered
from millstream.registry.records import BadRecord, SchemaErased, SchemaWritten, StoredRecord, decode, encode
from millstream.registry.subjects import context_of


def overruled(others: Sequence[StoredRecord], ours: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The records that take back ``ours``; empty if they hold.

    Args:
        others: what other registries wrote before ``ours``, and after what ``ours`` were decided on.
        ours: the records of a decision.
    """
    new = _registrations(ours)
    earlier = _registrations(others)
    if not any(_excludes(first, second) for first in earlier for second in new):
        return []
    held = {record.key: record for record in others}
    erased = [encode(SchemaErased(each.subject, each.version)) for each in new]
    return [held.get(record.key, record) for record in erased]


def _excludes(first: Registered, second: Registered) -> bool:
    if (first.subject, first.version) == (second.subject, second.version):
        return first != second
    is_same_id = first.id == second.id and context_of(first.subject) == context_of(second.subject)
    return is_same_id and first.schema != second.schema


def _registrations(records: Sequence[StoredRecord]) -> list[Registered]:
    found: list[Registered] = []
    for record in records:
        try:
            event = decode(record.key, record.value)
        except BadRecord:
            continue
        if isinstance(event, SchemaWritten) and not event.registered.deleted:
            found.append(event.registered)
    return found
