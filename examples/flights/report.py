"""Show what came out: the proof, a table, a chart, the figures, and where to look next."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pipeline import Runs
from proof import Proof
from rich.console import Console
from rich.table import Table

from load import Loaded

SHOWN_AIRLINES = 6
FOG_MILES = 3


def show(loaded: Loaded, runs: Runs, proof: Proof, data: Path, console: Console) -> None:
    for line in (*proven(loaded, proof), ""):
        console.print(f"   {line}", soft_wrap=True)
    console.print(letters_of(proof))
    airlines = by_airline(proof.table)
    console.print(shown_airlines(airlines))
    chart = data / "delays.png"
    draw(proof.table, airlines.column("airline").to_pylist()[:SHOWN_AIRLINES], chart)
    for line in (*figures(loaded, runs), f"tables    {data / 'tables'}", f"chart     {chart}", ""):
        console.print(f"   {line}", soft_wrap=True)
    console.print("Start the broker again on these data and look around:", style="bold")
    file = data / "flights.yaml"
    console.print(
        f"   .venv/bin/millstream start --data {data / 'broker'}\n"
        f"   .venv/bin/millstream pipeline status {file}\n"
        f"   .venv/bin/millstream pipeline plan {file}\n"
        "   .venv/bin/millstream consume very-late-flights --from beginning --count 5\n"
        f"Edit {file} and run it again.\n"
        "docs/pipeline.md has every key; examples/flights is the source of this demo.",
        soft_wrap=True,
    )


def proven(loaded: Loaded, proof: Proof) -> list[str]:
    """What was counted, line by line."""
    records = loaded.flights + loaded.bad
    good = "[bold green]none missing, none twice[/bold green]"
    return [
        f"topic     {records:,} records went in; each was looked for by its offset",
        f"Delta     {proof.table.num_rows:,} rows + {proof.letters.num_rows} dead letters = {records:,}: {good}",
        f"Iceberg   {proof.late:,} rows, flights an hour late: none missing, none twice",
        f"topic     {proof.sent:,} records, flights five hours late; none missing, none twice",
    ]


def letters_of(proof: Proof) -> Table:
    """One dead letter of each reason."""
    table = Table(title="Dead letters, one of each kind", title_justify="left")
    table.add_column("record", no_wrap=True)
    table.add_column("why", overflow="fold")
    seen: set[str] = set()
    for row in sorted(proof.letters.to_pylist(), key=lambda row: (row["partition"], row["offset"])):
        kind = "cut off" if "truncated" in row["error"] else row["error"]
        if kind not in seen:
            seen.add(kind)
            table.add_row(f"flights-{row['partition']}, offset {row['offset']:,}", row["error"])
    return table


def by_airline(flights: Any) -> Any:
    """Flights, cancelled ones and mean delays of each airline, the largest first."""
    fog = pc.less(flights.column("visibility"), FOG_MILES)
    delay = flights.column("dep_delay")
    nothing = pa.scalar(None, pa.float64())
    marked = flights.append_column("fog", pc.if_else(fog, delay, nothing))
    grouped = marked.group_by("airline").aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "mean"), ("fog", "mean")]
    )
    return grouped.sort_by([("count_all", "descending")])


def shown_airlines(airlines: Any) -> Table:
    table = Table(
        title=f"Departures from New York in 2013 (fog: less than {FOG_MILES} miles of visibility)", title_justify="left"
    )
    table.add_column("airline", no_wrap=True)
    for column in ("flights", "cancelled", "mean delay", "in fog"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in airlines.to_pylist():
        table.add_row(
            row["airline"],
            f"{row['count_all']:,}",
            f"{row['count_all'] - row['dep_delay_count']:,}",
            minutes(row["dep_delay_mean"]),
            minutes(row["fog_mean"]),
        )
    return table


def minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} min"


def figures(loaded: Loaded, runs: Runs) -> list[str]:
    size, rate = f"{loaded.value_bytes / 1e6:.0f} MB", f"{loaded.records / loaded.seconds:,.0f}/s"
    return [
        f"in        {loaded.records:,} records, {size} in {loaded.seconds:.1f} s: {rate}, each synced before its ack",
        f"pipeline  three sinks in {runs.seconds:.0f} s, with Spark's starts, the kill and what it undid",
    ]


def draw(flights: Any, airlines: list[str], path: Path) -> None:
    """Mean departure delay by week, a line for each of the airlines."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    weeks = flights.select(["airline", "dep_delay"]).append_column(
        "week", pc.floor_temporal(flights.column("time_hour"), unit="week")
    )
    means = weeks.group_by(["airline", "week"]).aggregate([("dep_delay", "mean")]).sort_by("week")
    figure, axes = plt.subplots(figsize=(10, 5), layout="constrained")
    for name in airlines:
        one = means.filter(pc.equal(means.column("airline"), name))
        axes.plot(one.column("week").to_pylist(), one.column("dep_delay_mean").to_pylist(), label=name, linewidth=1.6)
    axes.set_title("Mean departure delay from New York by week, 2013", loc="left")
    axes.set_ylabel("minutes")
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, ncols=SHOWN_AIRLINES, fontsize="small", loc="outside lower center")
    figure.savefig(path, dpi=130)
    plt.close(figure)
