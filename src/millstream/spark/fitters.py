"""Values of one type as values of another one: what was written, in the columns that a table has.

A member is found in what was written by name, by an alias, or by its number (Protobuf). A member that was not written
is its default, or null. A value widens (``int`` to ``bigint``, ``float`` to ``double``, a decimal to more digits, a
date to a timestamp), and it narrows where it is exactly the same afterwards. A nested value becomes JSON text in a
string column, and JSON text is read as a value of any other type. Between other types only null fits.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millstream.spark.declared import Field
from millstream.spark.fitting import (
    MISSING,
    Array,
    ArrowType,
    Member,
    Misfit,
    field_of,
    is_json_text,
    joined,
    json_text,
    stored,
)
from millstream.spark.values import JsonDecoder

Fit: TypeAlias = Callable[[Array], Array]

_VALUE: Final = "value"
"""The member that JSON text is read in."""


def fitter(written: Member, wanted: ArrowType, member: Member | None, path: str = "") -> Fit | None:
    """A function from values as ``written`` to values of type ``wanted``; None if they are the same.

    ``member`` is what the reader's schema says of the column; None if it has none. The function raises ``Misfit`` for
    values that do not fit. Arrays have the types that ``stored`` gives.
    """
    source, target = written.type, stored(wanted)
    if is_json_text(source):
        if written.members and pa.types.is_binary(target):
            return _only_nulls(source, target, path)
        return None if target == pa.string() else _parsed(target, path)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        return _struct_fitter(written, target, member, path)
    if pa.types.is_list(source) and pa.types.is_list(target):
        return _list_fitter(written, target, member, path)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return _map_fitter(written, target, member, path)
    if source == target:
        return None
    if pa.types.is_nested(source) and target == pa.string():
        return _texts(source)
    if not _castable(source, target):
        return _only_nulls(source, target, path)
    return _cast(source, target, path)


def written_for(member: Member, written: Sequence[Member]) -> Member | None:
    """The member that was written for one of the reader's: of that name or alias, or of that number."""
    if member.number is not None:
        return next((each for each in written if each.number == member.number), None)
    for name in (member.name, *member.aliases):
        found = next((each for each in written if each.name == name), None)
        if found is not None:
            return found
    return field_of(written, member.name)  # a name that differs by case alone is the same column


def _struct_fitter(written: Member, target: ArrowType, member: Member | None, path: str) -> Fit | None:
    readers = member.members if member is not None else ()
    steps: list[tuple[int, Fit | None, ArrowType, Member | None]] = []
    for field in target:
        reader = _reader_of(field.name, readers)
        source = written_for(reader, written.members) if reader is not None else field_of(written.members, field.name)
        if source is None:
            steps.append((-1, None, field.type, reader))
        else:
            index = written.members.index(source)
            steps.append((index, fitter(source, field.type, reader, joined(path, field.name)), field.type, None))
    fields = list(target)
    same = [index for index, *_ in steps] == list(range(len(written.members)))
    if same and all(fit is None for _, fit, *_ in steps) and stored(written.type) == target:
        return None

    def fit(array: Array) -> Array:
        children = array.flatten()
        columns: list[Array] = []
        for index, convert, kind, unwritten in steps:
            if index < 0:
                columns.append(_constant(unwritten, kind, len(array), path))
            else:
                columns.append(children[index] if convert is None else convert(children[index]))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=array.is_null())

    return fit


def _reader_of(name: str, readers: Sequence[Member]) -> Member | None:
    """What the reader's schema calls a column: the column may have the name that an alias keeps."""
    found = field_of(readers, name)
    return found or next((reader for reader in readers if name in reader.aliases), None)


def _constant(member: Member | None, kind: ArrowType, length: int, path: str) -> Array:
    """The column of a member that was not written: its default, which is a value of the member's own type, or null."""
    if member is None or member.default is MISSING or member.default is None:
        return pa.nulls(length, kind)
    try:
        one = pa.array([member.default], stored(member.type))
        fit = fitter(member, kind, member, joined(path, member.name))
        one = one if fit is None else fit(one)
    except Misfit:
        raise
    except Exception as error:
        raise Misfit(path, f"its default {member.default!r} does not fit: {error}") from error
    return one.take(pa.nulls(length, pa.int32()).fill_null(0))


def _list_fitter(written: Member, target: ArrowType, member: Member | None, path: str) -> Fit | None:
    inner = fitter(_element(written), target.value_type, member and _element(member), f"{path}[]")
    if inner is None and stored(written.type) == target:
        return None

    def fit(array: Array) -> Array:
        start, values = _values(array, array.values)
        return pa.ListArray.from_arrays(start, inner(values) if inner is not None else values, type=target)

    return fit


def _map_fitter(written: Member, target: ArrowType, member: Member | None, path: str) -> Fit | None:
    key = fitter(Member("key", written.type.key_type), target.key_type, None, f"{path} (key)")
    inner = fitter(_element(written), target.item_type, member and _element(member), f"{path}[]")
    if key is None and inner is None and stored(written.type) == target:
        return None

    def fit(array: Array) -> Array:
        start, keys = _values(array, array.keys)
        _, items = _values(array, array.items)
        keys = key(keys) if key is not None else keys
        return pa.MapArray.from_arrays(start, keys, inner(items) if inner is not None else items, type=target)

    return fit


def _element(member: Member) -> Member:
    """What a list or a map holds."""
    kind = member.type.item_type if pa.types.is_map(member.type) else getattr(member.type, "value_type", pa.null())
    return Member(member.name, kind, member.members)


def _values(array: Array, values: Array) -> tuple[Array, Array]:
    """Offsets from 0, null where the list is null, and the values that belong to this slice."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    subtract: Any = getattr(pc, "subtract")  # noqa: B009 (made at run time)
    if_else: Any = getattr(pc, "if_else")  # noqa: B009 (made at run time)
    offsets = subtract(offsets, pa.scalar(first, pa.int32()))
    if array.null_count:
        valid = pa.concat_arrays([array.is_valid(), pa.array([True])])
        offsets = if_else(valid, offsets, pa.scalar(None, pa.int32()))
    return offsets, values.slice(first, last - first)


def _castable(source: ArrowType, target: ArrowType) -> bool:
    """Whether values of one type may be values of another one, each that is exactly the same there."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    a, b = (next((test for test in numbers if test(kind)), None) for kind in (source, target))
    if a is not None and b is not None:
        return {a, b} != {pa.types.is_decimal, pa.types.is_floating}
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_date32(source) and pa.types.is_timestamp(target):
        return True
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return (source in texts and target in texts) or (pa.types.is_fixed_size_binary(target) and source == pa.binary())


def _cast(source: ArrowType, target: ArrowType, path: str) -> Fit:
    checked = pa.types.is_floating(source) and target == pa.float32()
    between = None
    if pa.types.is_integer(source) and pa.types.is_decimal(target):
        between = pa.decimal128(min(38, 19 + target.scale), target.scale)  # Arrow wants room for any integer

    def fit(array: Array) -> Array:
        try:
            found = (array if between is None else array.cast(between)).cast(target)
        except pa.ArrowException as error:
            raise Misfit(path, f"{error} ({source} in a column of {target})") from error
        if checked:
            equal: Any = getattr(pc, "equal")  # noqa: B009 (made at run time)
            is_nan: Any = getattr(pc, "is_nan")  # noqa: B009 (made at run time)
            all_true: Any = getattr(pc, "all")  # noqa: B009 (made at run time)
            or_: Any = getattr(pc, "or_")  # noqa: B009 (made at run time)
            if all_true(or_(equal(found.cast(source), array), is_nan(array))).as_py() is False:
                raise Misfit(path, f"a {source} is not exactly a {target}, the type of the column")
        return found

    return fit


def _texts(source: ArrowType) -> Fit:
    def fit(array: Array) -> Array:
        return pa.array([json_text(value, source) for value in array.to_pylist()], pa.string())

    return fit


def _only_nulls(source: ArrowType, target: ArrowType, path: str) -> Fit:
    def fit(array: Array) -> Array:
        if array.null_count < len(array):
            raise Misfit(path, f"the value was written as {stored(source)}, and the column is {target}")
        return pa.nulls(len(array), target)

    return fit


def _parsed(target: ArrowType, path: str) -> Fit:
    """JSON texts as values of a type, read as strictly as a record is."""
    decoder = JsonDecoder([Field(_VALUE, target)])

    def fit(array: Array) -> Array:
        records = [None if text is None else b'{"value":%b}' % text.encode() for text in array.to_pylist()]
        decoded = decoder.decode(pa.array(records, pa.binary()))
        if decoded.errors.null_count < len(decoded.errors):
            error = next(error for error in decoded.errors.to_pylist() if error is not None)
            raise Misfit(path, f"{error.replace('`$.value', '`$')} (any JSON value in a column of {target})")
        return decoded.columns.field(0)

    return fit
