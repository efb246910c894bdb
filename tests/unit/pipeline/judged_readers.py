"""Readers that tables are judged with. Each opens a table as its users do: by its path, or by its catalog.

A reader answers a list of filters twice. ``found`` filters the table, so it may skip files and row groups. ``told`` has
the filters as columns of a scan of everything, so it cannot skip anything. Both are a list with the ids of each filter.
``rows`` are all rows as text. A filter that a reader has no words for is ``None`` in both.
"""

import datetime as dt
import json
import math
import subprocess
import warnings

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.dataset
from judged_tables import ID
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull, LessThanOrEqual, NotNull
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UNREADABLE = {("DuckDB", "delta", "a b.c"), ("polars", "delta", "deep")}
"""Columns that a reader cannot filter in any table."""
OPERATORS = ("=", "<=", ">=")


def ids(column):
    return sorted(column.to_pylist() if hasattr(column, "to_pylist") else column.to_list())


def texts(table):
    """Rows as text: NaN equals itself there, and -0.0 does not equal 0.0. Dates and times are numbers."""
    for index, field in enumerate(table.schema):
        if pa.types.is_date32(field.type) or pa.types.is_timestamp(field.type):
            number = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            table = table.set_column(index, field.name, table.column(index).cast(number))
    return sorted(str([(name, str(row[name])) for name in table.column_names]) for row in table.to_pylist())


class ArrowReader:
    """``to_pyarrow_dataset`` of deltalake, or a directory of Parquet files: what pandas and others use."""

    name = "pyarrow"
    kinds = ("delta", "parquet")

    def _dataset(self, table, path):
        if table.kind == "delta":
            return deltalake.DeltaTable(path).to_pyarrow_dataset()
        return pa.dataset.dataset(path, partitioning="hive")

    def _expression(self, one):
        field = pa.compute.field(*one.path)
        if one.operator in ("null", "present"):
            return field.is_null() if one.operator == "null" else field.is_valid()
        if isinstance(one.value, float) and math.isnan(one.value):
            return None  # it equals nothing, and footers do not tell of it
        value = pa.scalar(one.value, one.kind)
        return {"=": field == value, "<=": field <= value, ">=": field >= value}[one.operator]

    def found(self, table, path, filters):
        dataset = self._dataset(table, path)
        wanted = [self._expression(one) for one in filters]
        return [None if one is None else ids(dataset.to_table(filter=one, columns=[ID])[ID]) for one in wanted]

    def told(self, table, path, filters):
        memory = self._dataset(table, path).to_table()
        wanted = [self._expression(one) for one in filters]
        return [None if one is None else ids(memory.filter(one)[ID]) for one in wanted]

    def rows(self, table, path, names):
        return texts(self._dataset(table, path).to_table(columns=names))


class PolarsReader:
    name = "polars"
    kinds = ("delta", "iceberg", "parquet")

    def _frame(self, table, path):
        if table.kind == "delta":
            return pl.scan_delta(path)
        if table.kind == "iceberg":
            return pl.scan_iceberg(table.catalog.load_table(path))
        return pl.scan_parquet(f"{path}/*/*.parquet", hive_partitioning=True)

    def _expressions(self, frame, filters):
        kinds = frame.collect_schema()
        for one in filters:
            column, kind = pl.col(one.path[0]), kinds[one.path[0]]
            for name in one.path[1:]:
                column, kind = column.struct.field(name), dict(kind)[name]
            if one.operator in ("null", "present"):
                yield column.is_null() if one.operator == "null" else column.is_not_null()
                continue
            value = pl.lit(one.value, dtype=kind)
            yield {"=": column == value, "<=": column <= value, ">=": column >= value}[one.operator]

    def found(self, table, path, filters):
        frame = self._frame(table, path)
        return [ids(frame.filter(one).select(ID).collect()[ID]) for one in self._expressions(frame, filters)]

    def told(self, table, path, filters):
        frame = self._frame(table, path).collect()
        wanted = self._expressions(frame.lazy(), filters)
        return [ids(frame.filter(one)[ID]) for one in wanted]

    def rows(self, table, path, names):
        return texts(self._frame(table, path).select(names).collect().to_arrow())


class PyicebergReader:
    name = "pyiceberg"
    kinds = ("iceberg",)

    def _expression(self, one):
        name = ".".join(one.path)
        if len(one.path) > 1 or pa.types.is_list(one.kind) or pa.types.is_map(one.kind):
            return None  # it does not filter them
        if one.operator in ("null", "present"):
            return IsNull(name) if one.operator == "null" else NotNull(name)
        if isinstance(one.value, float) and not math.isfinite(one.value):
            return None  # no literals of its
        return {"=": EqualTo, "<=": LessThanOrEqual, ">=": GreaterThanOrEqual}[one.operator](name, one.value)

    def found(self, table, path, filters):
        opened = table.catalog.load_table(path)
        wanted = [self._expression(one) for one in filters]
        return [
            None if one is None else ids(opened.scan(row_filter=one, selected_fields=(ID,)).to_arrow()[ID])
            for one in wanted
        ]

    def told(self, table, path, filters):
        opened = table.catalog.load_table(path)
        memory = opened.scan().to_arrow()
        wanted = [self._expression(one) for one in filters]
        return [
            None if one is None else ids(memory.filter(expression_to_pyarrow(bind(opened.schema(), one, True)))[ID])
            for one in wanted
        ]

    def rows(self, table, path, names):
        return texts(table.catalog.load_table(path).scan(selected_fields=tuple(names)).to_arrow())


class SqlReader:
    """An engine that is asked in SQL. ``query`` runs a text and returns rows; ``source`` is the table in it."""

    def query(self, text):
        raise NotImplementedError

    def source(self, table, path):
        raise NotImplementedError

    def quoted(self, path):
        return ".".join('"' + name.replace('"', '""') + '"' for name in path)

    def literal(self, value, kind):
        raise NotImplementedError

    def _condition(self, one):
        column = self.quoted(one.path)
        if one.operator in ("null", "present"):
            return f"{column} is {'' if one.operator == 'null' else 'not '}null"
        return f"{column} {one.operator} {self.literal(one.value, one.kind)}"

    def found(self, table, path, filters):
        source = self.source(table, path)
        parts = [f"select {n} as f, {ID} from {source} where {self._condition(one)}" for n, one in enumerate(filters)]
        answers = [[] for _ in filters]
        for number, id_ in self.query(" union all ".join(parts)):
            answers[number].append(id_)
        return [sorted(answer) for answer in answers]

    def told(self, table, path, filters):
        conditions = ", ".join(f"{self._condition(one)} as f{n}" for n, one in enumerate(filters))
        answers = [[] for _ in filters]
        for id_, *values in self.query(f"select {ID}, {conditions} from {self.source(table, path)}"):
            for answer, value in zip(answers, values, strict=True):
                if value:
                    answer.append(id_)
        return [sorted(answer) for answer in answers]


class DataFusionReader(SqlReader):
    """``deltalake.QueryBuilder``."""

    name = "DataFusion"
    kinds = ("delta",)

    def source(self, table, path):
        self._builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
        return "t"

    def query(self, text):
        found = pa.table(self._builder.execute(text).read_all())
        return zip(*(column.to_pylist() for column in found.columns), strict=True)

    def quoted(self, path):
        first, *inner = path
        return super().quoted((first,)) + "".join(f"['{name}']" for name in inner)

    def literal(self, value, kind):
        if pa.types.is_string(kind):
            return "'" + value.replace("'", "''") + "'"
        if pa.types.is_boolean(kind):
            return str(value).lower()
        if pa.types.is_binary(kind):
            return f"X'{value.hex()}'"
        arrow = {"int64": "Int64", "float": "Float32", "double": "Float64"}
        if pa.types.is_decimal(kind):
            return f"arrow_cast('{value:f}', 'Decimal128({kind.precision}, {kind.scale})')"
        if pa.types.is_integer(kind):
            return f"arrow_cast('{value}', '{str(kind).title()}')"
        if pa.types.is_date(kind):
            return f"arrow_cast({value.toordinal() - EPOCH.toordinal()}, 'Date32')"
        if pa.types.is_timestamp(kind):
            zone = "None" if kind.tz is None else 'Some("UTC")'
            return f"arrow_cast({micros(value)}, 'Timestamp(Microsecond, {zone})')"
        return f"arrow_cast('{value!r}', '{arrow[str(kind)]}')"

    def rows(self, table, path, names):
        source = self.source(table, path)
        return texts(pa.table(self._builder.execute(f"select * from {source}").read_all()).select(names))


def micros(value):
    moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


class ProcessReader(SqlReader):
    """An engine in a process of another environment. It gets statements as lines of JSON, and answers in such lines."""

    def __init__(self, command, env):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)

    def query(self, text):
        self._process.stdin.write(json.dumps(text) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["rows"]

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._process.stdout.close()

    def rows(self, table, path, names):
        columns = ", ".join(self.as_text(self.quoted((name,))) for name in names)
        return sorted(map(str, self.query(f"select {columns} from {self.source(table, path)}")))


class DuckDbReader(ProcessReader):
    """DuckDB 1.4.4 with its extensions, which open a table by its log or by its metadata."""

    name = "DuckDB"
    kinds = ("delta", "iceberg", "parquet")

    def source(self, table, path):
        if table.kind == "delta":
            return f"delta_scan('{path}')"
        if table.kind == "iceberg":
            return f"iceberg_scan('{table.catalog.load_table(path).metadata_location}')"
        return f"read_parquet('{path}/*/*.parquet', hive_partitioning = true)"

    def as_text(self, column):
        return f"md5({column}::varchar)"

    def literal(self, value, kind):
        if pa.types.is_string(kind):
            parts = value.split("\0")
            return "concat(" + ", chr(0), ".join("'" + part.replace("'", "''") + "'" for part in parts) + ")"
        if pa.types.is_binary(kind):
            return f"from_hex('{value.hex()}')"
        if pa.types.is_decimal(kind):
            return f"'{value:f}'::decimal({kind.precision}, {kind.scale})"
        if pa.types.is_date(kind):
            return f"'{value.isoformat()}'::date"
        if pa.types.is_timestamp(kind):
            return f"make_timestamp{'' if kind.tz is None else 'tz'}({micros(value)}::bigint)"
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            arrow = {"int8": "tinyint", "int16": "smallint", "int32": "integer", "int64": "bigint"}
            return f"'{value!r}'::{arrow.get(str(kind), str(kind))}"
        return str(value).lower()


class SparkReader(ProcessReader):
    """Spark 4.1 with the jars of Delta and of Iceberg. It opens the same SQLite catalog, as a JDBC catalog of Java."""

    name = "Spark"
    kinds = ("delta", "iceberg", "parquet")

    def __init__(self, command, env):
        super().__init__(command, env)
        self._catalog = None

    def source(self, table, path):
        if table.kind != "iceberg":
            return f"{table.kind}.`{path}`"
        own = table.catalog.properties
        if own["uri"] != self._catalog:
            self._catalog = own["uri"]
            properties = {
                "": "org.apache.iceberg.spark.SparkCatalog",
                ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
                ".uri": own["uri"].replace("sqlite:///", "jdbc:sqlite:"),
                ".warehouse": own["warehouse"],
            }
            self.query({"catalog": table.catalog.name, "properties": properties})
        return f"{table.catalog.name}.{path}"

    def quoted(self, path):
        return ".".join("`" + name.replace("`", "``") + "`" for name in path)

    def as_text(self, column):
        return f"md5(cast(cast({column} as string) as binary))"

    def literal(self, value, kind):
        if pa.types.is_string(kind):
            if len(value) > 1000 and len(set(value)) == 1:
                return f"repeat({self.literal(value[0], kind)}, {len(value)})"
            return f"decode(X'{value.encode('utf-8', 'surrogatepass').hex()}', 'UTF-8')"
        if pa.types.is_binary(kind):
            return f"repeat(X'{value[:1].hex()}', {len(value)})" if len(value) > 1000 else f"X'{value.hex()}'"
        if pa.types.is_decimal(kind):
            return f"cast('{value:f}' as decimal({kind.precision}, {kind.scale}))"
        if pa.types.is_date(kind):
            return f"date_from_unix_date({value.toordinal() - EPOCH.toordinal()})"
        if pa.types.is_timestamp(kind):
            moment = f"timestamp_micros({micros(value)})"
            return moment if kind.tz is not None else f"cast({moment} as timestamp_ntz)"
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            names = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}
            return f"cast('{value!r}' as {names.get(str(kind), str(kind))})"
        return str(value).lower()


def judge(reader, table, filters, names):
    """What a reader gets wrong of a table: a list of sentences.

    It is wrong if it loses or adds rows because a filter is there, and if it shows other values than in the table of
    the format's own writer. What it gets wrong there, too, or cannot read there, is the reader's own affair.

    Filters of several columns are judged together, so that a table is opened and scanned once. Where the reader fails
    then, each column is judged alone.
    """
    columns = dict.fromkeys(one.path[0] for one in filters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, told = reader.found(table, table.ours, filters), reader.told(table, table.ours, filters)
            shown = reader.rows(table, table.ours, names) if names else None
        except Exception as error:  # noqa: BLE001 (of many libraries)
            if len(columns) > 1:
                return _each_alone(reader, table, filters, names, columns)
            return _unreadable(reader, table, filters, names, error)
        try:
            wrong = _misled(reader, table, filters, found, told)
            other = reader.told(table, table.reference, filters)
            differ = dict.fromkeys(
                one.path[0] for one, *two in zip(filters, other, told, strict=True) if two[0] != two[1]
            )
            wrong += [
                f"{reader.name}, {table.kind}: filters of {column} have other answers for the format's own table"
                for column in differ
            ]
            if names and reader.rows(table, table.reference, names) != shown:
                wrong.append(f"{reader.name}, {table.kind}: rows differ from those of the format's own table")
        except Exception:  # noqa: BLE001 (of many libraries)
            if len(columns) > 1:
                return _each_alone(reader, table, filters, names, columns)
            return _missed(reader, table, filters, found, told)
    return wrong


def _each_alone(reader, table, filters, names, columns):
    wrong = []
    for column in columns:
        wrong += judge(reader, table, [one for one in filters if one.path[0] == column], names)
        names = []
    return wrong


def _missed(reader, table, filters, found, told):
    """What filters miss in a table whose like of the format's own writer cannot be read."""
    return [
        f"{reader.name}, {table.kind}: {one.path} {one.operator}: rows {answer}, and not {right}"
        for one, answer, right in zip(filters, found, told, strict=True)
        if answer != right
    ]


def _misled(reader, table, filters, found, told):
    differ = [number for number in range(len(filters)) if found[number] != told[number]]
    others = reader.found(table, table.reference, [filters[number] for number in differ]) if differ else []
    return [
        f"{reader.name}, {table.kind}: {filters[number].path} {filters[number].operator} "
        f"{filters[number].value!r:.50}: rows {found[number]}, and not {told[number]}"
        for number, other in zip(differ, others, strict=True)
        if other == told[number]
    ]


def _unreadable(reader, table, filters, names, error):
    """A reader that cannot do something at all cannot do it on the format's own table either."""
    try:
        reader.found(table, table.reference, filters)
        reader.told(table, table.reference, filters)
        if names:
            reader.rows(table, table.reference, names)
    except Exception as own:  # noqa: BLE001 (of many libraries)
        known = (reader.name, table.kind, filters[0].path[0]) in UNREADABLE
        return [] if known else [f"{reader.name}, {table.kind}: cannot read {filters[0].path} of any table: {own}"]
    return [f"{reader.name}, {table.kind}: {filters[0].path}: {error}"]
